"""Targets: what is no file of a queue: names, receipts, settings, lines, frames, and what the kernel says."""

from __future__ import annotations

import io
import json
import math
import os
import socket
import threading
from contextlib import redirect_stderr
from typing import Any
from unittest import mock

import click
from fuzz_oracle import Target, need
from fuzz_place import BAD, SHARDS, TREE, check_shallow, files, owned, place, task

from dfq import checks
from dfq.cli import output
from dfq.cli.options import Time
from dfq.cli.push import Load
from dfq.cli.verbs import _receipt
from dfq.codec import parse_iso
from dfq.config import _PARSERS, Settings, _parse, resolve
from dfq.errors import ConfigError, InvalidTask, LeaseLost, QueueError
from dfq.mounts import Mount, mount_of
from dfq.names import decode, encode, is_hashed, shard_of
from dfq.node import Probe
from dfq.node.board import board
from dfq.node.clock import clocks
from dfq.node.finding import Finding
from dfq.node.identity import identity
from dfq.node.limits import limits
from dfq.node.storage import storage
from dfq.providers.filesystem.tiles import IndexTree, is_tile
from dfq.queue import Push
from dfq.staleness import moment
from dfq.tree import bucket_start, epoch_of, id_of, in_epoch, is_key, is_lane, plain, slot_name, task_name
from dfq.work.link import LinkClosed, recv_frame
from dfq.work.slot import _outcome

MAX_NAMES = 100_000
_names: dict[str, str] = {}  # every name that was made, and of which id
_INDEX = IndexTree(SHARDS)


def ids(data: bytes) -> None:
    """An id has one name, no other id has it, it is fit to be a file's, and it tells the id unless it is too long."""
    task_id = data.decode("utf-8", "surrogatepass") if _decodable(data) else os.fsdecode(data)
    name = encode(task_id)
    need(name and not set(name) & {"/", "\0", "~", "\n"} and name[0] not in ".-", f"{name!r} is no name for a file")
    need(len(name.encode()) <= 200, f"a name of {len(name.encode())} bytes")
    need(is_hashed(name) if decode(name) is None else decode(name) == task_id, f"{name!r} does not lead back")
    if len(_names) < MAX_NAMES:
        need(_names.setdefault(name, task_id) == task_id, f"two ids have the name {name!r}")
    for epoch in (0, 1, 999_999_999):
        key = in_epoch(name, epoch)
        need(is_key(key) and plain(key) == name and epoch_of(key) == epoch, f"{key!r} is no key")
        need(task_name(f"{key}.json") == key, f"{key!r} is no task's")
        for generation in (1, 2, 10_000):
            path = TREE.slot(key, generation)
            need(slot_name(path.rpartition("/")[2]) == (key, generation), f"{path!r} does not lead back")
    need(len(shard_of(name, 4096)) == 3, "a shard of another width")


def _decodable(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def filenames(data: bytes) -> None:
    """Whatever a file is called, it is a task's, a slot's, or none's; and only what an id encodes to is one's."""
    name = os.fsdecode(data.replace(b"/", b"").replace(b"\0", b"")[:255])
    key = task_name(name)
    if key is not None:
        _check_key(key)
        need(f"{key}.json" == name, f"{name!r} is taken for {key!r}")
    slot = slot_name(name)
    if slot is not None:
        _check_key(slot[0])
        need(TREE.slot(*slot).rpartition("/")[2] == name, f"{name!r} is taken for {slot}")
    start = bucket_start(name)
    need(start is None or math.isfinite(start), "a window without a start")
    if is_lane(name):
        need(0 <= int(name) <= 9, "a lane that is none")
    TREE.is_shard(name)


def _check_key(key: str) -> None:
    need(len(os.path.normpath(TREE.completed(key)).split("/")) == 3, f"{key!r} leaves its folder")
    need(".." not in TREE.slot(key, 2).split("/"), f"{key!r} leaves its folder")
    task_id = id_of(key)
    if task_id is not None:
        need(encode(task_id) == plain(key), f"{key!r} is not what {task_id!r} encodes to")
    _INDEX.completed(key)


def tile_paths(data: bytes) -> None:
    """A path in a tree of tiles is a task, or not; that of a task stays within both trees."""
    path = os.fsdecode(data)
    if not is_tile(path):
        return
    entry = _INDEX.tile(path, len(data) % 3)
    for made in (entry.path, entry.witness, _INDEX.slot(entry.name, 2), _INDEX.failed(entry.name)):
        need(os.path.normpath(made) == made and ".." not in made.split("/"), f"{made!r} is no plain path")
    need(id_of(entry.name) == path, f"{entry.name!r} does not lead back to {path!r}")


def receipts(data: bytes) -> None:
    """A receipt of another's making: LeaseLost or InvalidTask, and no path that leaves the queue."""
    receipt = data.decode(errors="surrogateescape")
    with files((TREE.entry(BAD, 5).path, task()), (TREE.slot(BAD, 1), b"{}")):
        owned().resume_lease(receipt)


def claim_lines(data: bytes) -> None:
    """What is handed to `dfq ack`: the receipt in it, or a usage error."""
    text = data.decode(errors="surrogateescape")
    need(isinstance(_receipt(None, None, text), str), "a receipt that is no text")  # type: ignore[arg-type]


def spans(data: bytes) -> None:
    """A time on the command line: within its limits, or a usage error."""
    found = Time(0, 100.0).convert(data.decode(errors="surrogateescape"), None, None)
    need(0 <= found <= 100, f"{found} s")


def toml(data: bytes) -> None:
    """dfq.toml: settings within their limits, or ConfigError."""
    home = place().folder / "home"
    (home / "dfq.toml").write_bytes(data)
    nowhere = {"XDG_CONFIG_HOME": str(home / "none"), "HOME": str(home)}
    with mock.patch.dict(os.environ, nowhere, clear=True):
        settings, sources = resolve(queue="tiles", root=str(home))
    _check_settings(settings)
    need(set(sources) == set(_PARSERS), "a setting without a source")


def environment(data: bytes) -> None:
    """DFQ_ variables: settings within their limits, or ConfigError."""
    given = {"HOME": str(place().folder / "home"), "XDG_CONFIG_HOME": str(place().folder / "home" / "none")}
    for line in data.split(b"\n")[:20]:
        name, _, value = line.partition(b"=")
        if name and b"\0" not in line:
            given[os.fsdecode(name)] = os.fsdecode(value)
    (place().folder / "home" / "dfq.toml").unlink(missing_ok=True)
    with mock.patch.dict(os.environ, given, clear=True):
        settings, _ = resolve(queue="tiles", root=str(place().folder / "home"))
    _check_settings(settings)


def arguments(data: bytes) -> None:
    """Settings and arguments of calls as any JSON value: taken, or an error of ours."""
    name, _, text = data.partition(b"=")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = 10 ** min(len(data) * 20, 9000)  # JSON has no such number, a caller may
    looks = [checks.check_priority, checks.check_delay, checks.check_batch, checks.check_wait, checks.check_lease]
    looks += [checks.check_if_exists, checks.check_state, checks.check_limit, checks.check_error, checks.check_id]
    for check in looks:
        try:
            check(value)
        except QueueError as e:
            need(len(str(e)) < 20_000, "an endless message")
    for setting in [*_PARSERS, name.decode(errors="replace")]:
        try:
            _parse(setting, value, "here")
        except ConfigError as e:
            need(len(str(e)) < 2 * len(data) + 10_000, "an endless message")


def _check_settings(settings: Settings) -> None:
    need(0.05 <= settings.lease <= 30 * 86400, f"lease {settings.lease}")
    need(1 <= settings.max_attempts <= 1000 and 1 <= settings.shards <= 4096, "max_attempts or shards")
    need(1 <= settings.max_payload <= 64 * 1024 * 1024, f"max_payload {settings.max_payload}")
    need(all(0 <= settings.backoff.delay(n) <= 30 * 86400 for n in (0, 1, 5, 1000)), "backoff")
    need(settings.root.is_absolute(), "a root that depends on where one stands")


def times(data: bytes) -> None:
    """Times that files have: a number, or none; and they can be shown to a person."""
    text = data.decode(errors="replace")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    for given in (text, value):
        found = moment(given)
        need(found is None or math.isfinite(found), f"{given!r} is the time {found}")
        with mock.patch.object(output, "on_terminal", return_value=True):
            output.moment(given if isinstance(given, str) else None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        parse_iso(value)


def frames(data: bytes) -> None:
    """What a child sends: frames, and the end of the link or LinkClosed. A frame is an object, an answer an outcome."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)

    def send() -> None:
        with theirs:
            try:
                theirs.sendall(data)
            except OSError:
                return  # nobody reads on after what makes no sense

    sender = threading.Thread(target=send)
    sender.start()
    try:
        while (received := recv_frame(ours)) is not None:
            need(isinstance(received[0], dict), "a frame that is no object")
            need(_outcome(received[0]).kind in ("done", "failed", "released", "lost"), "an outcome that is none")
    finally:
        ours.close()
        sender.join()


def push_lines(data: bytes) -> None:
    """`dfq push --from`: each line is pushed, told to be bad, or blank."""
    for id_field in (None, "id"):
        source = io.BytesIO(data)
        load = Load(source, max_payload=2000, id_field=id_field, priority=5, delay=0.0)
        queue = _Pushed()
        with redirect_stderr(io.StringIO()), mock.patch("dfq.cli.push.where", return_value=mock.Mock(name="q")):
            list(load.push_to(queue, "skip", lambda size: None))  # type: ignore[arg-type]
        need(load.pushed == len(queue.taken), "what was pushed was not counted")
        blank = sum(not line.strip() for line in data.split(b"\n"))
        need(load.pushed + load.bad + blank == data.count(b"\n") + 1, "a line was lost")


class _Pushed:
    def __init__(self) -> None:
        self.taken: list[Push] = []

    def push_many(self, items: list[Push], **how: Any) -> list[str]:
        for item in items:
            check_shallow(item.payload, extra=0)
            owned()._intake.prepare(item)  # what the command line lets through, the queue takes
        self.taken += items
        return [item.id or "new" for item in items]


def mounts(data: bytes) -> None:
    """The kernel's table of mounts, whatever it says."""
    table = data.decode(errors="surrogateescape")
    for path in ("/", "/tmp", str(place().root)):
        found = mount_of(path, table)
        need(found is None or isinstance(found, Mount), "no mount")


class _Saying(Probe):
    """A machine whose every file and command says the same."""

    def __init__(self, data: bytes) -> None:
        self._text = data.decode(errors="surrogateescape")

    def read(self, path: str) -> str | None:
        return self._text

    def names(self, folder: str) -> list[str]:
        return ["thermal_zone0", "hwmon0", *self._text.split("\n")[:3]]

    def run(self, *argv: str) -> str | None:
        return self._text

    def sensors(self) -> dict[str, float]:
        return {}

    def programs(self) -> set[str]:
        return {"chronyd"} if len(self._text) % 2 else set()

    def kernel_clock(self) -> tuple[bool, float] | None:
        return None if len(self._text) % 3 else (False, 1.0)

    def host(self) -> str:
        return self._text[:64]


def node(data: bytes) -> None:
    """What `dfq doctor` reads: a finding for each thing, which can be printed anywhere."""
    probe = _Saying(data)
    found: list[Finding] = [*board(probe), *clocks(probe), *storage(probe, str(place().root)), *limits(probe, SHARDS)]
    found += identity(probe)
    for finding in found:
        need(finding.level in ("ok", "warn", "fail", "unknown"), "a level that is none")
        output._cell(finding.found).encode()  # strict: whatever was read, the line can be piped anywhere
        json.dumps(finding.found)


TARGETS = [
    Target("id to name", ids, (InvalidTask,), limit=8 * 1024),
    Target("file name", filenames, limit=1024),
    Target("path of a tile", tile_paths, limit=8 * 1024),
    Target("receipt", receipts, (LeaseLost, InvalidTask), limit=2 * 1024),
    Target("line of a claim", claim_lines, (click.BadParameter,)),
    Target("time on the command line", spans, (click.BadParameter,)),
    Target("dfq.toml", toml, (ConfigError,), limit=66 * 1024),
    Target("environment", environment, (ConfigError,)),
    Target("argument", arguments, limit=4 * 1024),
    Target("time in a file", times, limit=8 * 1024),
    Target("frame of a child", frames, (LinkClosed,), limit=256 * 1024),
    Target("lines to push", push_lines),
    Target("table of mounts", mounts),
    Target("what the node says", node),
]
