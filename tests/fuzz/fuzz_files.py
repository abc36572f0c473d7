"""Targets: the files of a queue, each as whatever somebody else may have written there."""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import Any

from fuzz_oracle import Target, Violation, need
from fuzz_place import BAD, CLOCK, MACHINE, TREE, check_shallow, files, index, owned, place, put, task

from dfq.cli.look import as_object
from dfq.cli.output import as_text
from dfq.codec import decode_payload, dumps, encode_payload, encode_result, loads
from dfq.errors import ConfigError, InvalidTask, LeaseLost, PayloadTooLarge, QueueUnavailable, TaskNotFound
from dfq.lease import lease_bytes, parse, released, renewed
from dfq.names import encode
from dfq.providers.filesystem.fsck import check_meta
from dfq.providers.filesystem.meta import shards_of
from dfq.providers.filesystem.steady import Steadiness
from dfq.queue import TaskInfo
from dfq.records import errors_of, is_stub, read_task
from dfq.staleness import delay_over
from dfq.tree import CLOCK as CLOCK_FILE
from dfq.tree import META, in_epoch

ENTRY = TREE.entry(BAD, 5)
LIMIT = 64 * 1024
TILE = "a/tile.csv"


def lease(data: bytes) -> None:
    """Any bytes are a slot: never an error, and every property of it can be had."""
    slot = parse(BAD, 1, data)
    need(slot.state in ("leased", "released", "done", "dead", "torn"), f"state {slot.state!r}")
    need(0 <= slot.attempt < 2**31, f"attempt {slot.attempt}")
    need(isinstance(slot.nonce, str), "nonce is no text")
    for value in (slot.ttl, slot.deadline):
        need(value is None or (math.isfinite(value) and value >= 0), f"time {value}")
    need(math.isfinite(delay_over(slot.record, CLOCK, MACHINE, 1.0)), "a delay that never ends")
    need(all(isinstance(error, dict | object) for error in errors_of(slot)), "errors")
    is_stub(slot)
    if slot.state == "torn":
        return
    check_shallow(slot.record)
    for record in (
        renewed(slot.record, 5.0, CLOCK),
        released(slot.record, attempt=1, delay=1.0, error="e\ud800" * 9999, machine=MACHINE, clock=CLOCK),
    ):
        raw = lease_bytes(record)
        need(len(raw) >= 1024 and raw.endswith(b"\n"), "a lease that is not padded")


def judged(data: bytes) -> None:
    """A lease with any bytes in the place of a task's first slot: it can be looked at, and has an end."""
    with files((TREE.entry(BAD, 5).path, task()), (TREE.slot(BAD, 1), data)):
        queue = owned()
        top = queue._log.top(BAD)
        need(top is not None, "the slot is not seen")
        if top is not None and top.state in ("leased", "torn"):
            until = queue._judge.held_until(top, TREE.slot(BAD, 1))
            need(until is None or math.isfinite(until), f"held until {until}")
        _show(queue.get(BAD))
        queue.counts()
        _looked_at()


def resumed(data: bytes) -> None:
    """A receipt for a lease with any bytes: refused, or the lease can be renewed, given back and completed."""
    nonce = parse(BAD, 1, data).nonce
    for verb in ("heartbeat", "nack", "ack"):
        with files((TREE.entry(BAD, 5).path, task()), (TREE.slot(BAD, 1), data)):
            queue = owned()
            try:
                held = queue.resume_lease(f"1.{nonce}.5.{BAD}")
                getattr(queue, verb)(held)
            except (LeaseLost, InvalidTask):
                continue
            finally:
                queue._renewer.claims()
            need(queue.get(BAD).state in ("leased", "pending", "completed", "failed"), "its state")


def task_file(data: bytes) -> None:
    """Bytes that are a task have the id of their name, can be written again, and can be taken apart."""
    record = read_task(data, ENTRY, LIMIT)
    need(encode(record["id"]) == BAD, "the id of another file")
    check_shallow(record)
    payload = decode_payload(record["payload"], record["encoding"], "here")
    need(loads(dumps(record), "again") == record, "a task that reads differently the second time")
    _round_trip(payload)


def waiting(data: bytes) -> None:
    """Bytes in the frontier and in the schedule: looking at them is never an error."""
    with files((ENTRY.path, data), (f"scheduled/20200101T000000Z/{BAD}2.json", data)):
        queue = owned()
        for found in (BAD, f"{BAD}2"):
            _show(queue.get(found))
        for info in queue.tasks():
            _show(info)
        for found_state in queue.states():
            need(isinstance(found_state.id, str), "an id that is no text")
        queue._schedule.promote()
        _looked_at()


def witness(data: bytes) -> None:
    """Bytes in completed/: looking at them is never an error."""
    with files((TREE.completed(BAD), data), (TREE.completed(in_epoch(BAD, 1)), data), (TREE.retired(BAD), data)):
        _show(owned().get(BAD))
        for info in owned().tasks("completed"):
            _show(info)
        owned().counts()
        _looked_at()


def letter(data: bytes) -> None:
    """Bytes as a dead letter, and as the slot that makes it one."""
    with files((ENTRY.path, task()), (TREE.slot(BAD, 1), data), (TREE.failed(BAD), data)):
        _show(owned().get(BAD))
        for info in owned().tasks("failed"):
            _show(info)
        _looked_at()
        owned().retry()


def meta(data: bytes) -> None:
    """queue.json: a number of shards, or a clear refusal."""
    owned()
    good = (place().root / "q" / META).read_bytes()
    try:
        put(META, data)
        store = place().store()
        check_meta(store, CLOCK, "here")
        shards = shards_of(store, CLOCK, create=False, shards=1, where="here")
        need(1 <= shards <= 4096, f"{shards} shards")
    finally:
        put(META, good)


def clock(data: bytes) -> None:
    """clock.json: any bytes are a hint that is taken or not."""
    owned()
    put(CLOCK_FILE, data)
    steady = Steadiness(place().store(), CLOCK, MACHINE).seconds()
    need(0 <= steady <= CLOCK.elapsed(), f"steady for {steady} s on a machine that is up for {CLOCK.elapsed()} s")


def tile(data: bytes) -> None:
    """Bytes as a witness that another tool put beside a tile, and as that of a later epoch."""
    queue = index()
    shown = place().witnesses / TILE
    own = place().root / "index" / queue._tree.completed(in_epoch(encode(TILE), 1))
    try:
        for path in (shown, own):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (1, 1))  # long due again
        _show(queue.get(TILE))
        for info in queue.tasks():
            _show(info)
        queue.counts()
    finally:
        for path in (shown, own):
            path.unlink(missing_ok=True)


def payload(data: bytes) -> None:
    """What a file says of a payload: decoded, or InvalidTask; and what can be pushed comes back as it was."""
    text, _, encoding = data.decode("utf-8", "surrogateescape").rpartition("\n")
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        decoded, encoding = text, "base64"
    for given in (data, decoded, [decoded], {"x": decoded}):
        with contextlib.suppress(InvalidTask, PayloadTooLarge):
            _round_trip(given)
    decode_payload(decoded, encoding, "here")


def _round_trip(given: Any) -> None:
    make = encode_payload if isinstance(given, dict | str | bytes) else None
    value, encoding = make(given, LIMIT) if make is not None else encode_result(given, LIMIT)
    line = dumps({"payload": value})
    need(b"\n" not in line, "more than one line")
    again = decode_payload(loads(line, "again")["payload"], encoding, "again")
    need(again == given, "it comes back as something else")


def _show(info: TaskInfo) -> None:
    """What `dfq show` and `dfq ls --json` print of a task, whatever is in its file."""
    need(isinstance(info.id, str) and info.id, "a task without an id")
    line = json.dumps(as_object(info), default=str)
    try:
        json.loads(line, parse_constant=_no_constant)
    except ValueError as e:
        raise Violation(f"--json prints what is no JSON: {e}") from e
    for value in (info.payload, info.result):
        as_text(value)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _looked_at() -> None:
    for finding in owned().fsck(settle=0):
        need(finding.code and finding.found, "a finding that says nothing")


TARGETS = [
    Target("lease", lease),
    Target("lease on disk", judged, limit=8 * 1024),
    Target("lease and receipt", resumed, limit=8 * 1024),
    Target("task", task_file, (InvalidTask,), limit=4 * LIMIT),
    Target("task on disk", waiting, limit=8 * 1024),
    Target("witness", witness, (TaskNotFound,), limit=8 * 1024),
    Target("dead letter", letter, limit=8 * 1024),
    Target("queue.json", meta, (QueueUnavailable, ConfigError)),
    Target("clock.json", clock),
    Target("witness of a tile", tile, limit=8 * 1024),
    Target("payload", payload, (InvalidTask,)),
]
