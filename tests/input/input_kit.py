"""What may lie where a queue expects one of its files, shared by the tests in this folder."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dfq
from dfq.names import encode, shard_of

SHARDS = 16
MAX_PAYLOAD = 20_000
MAX_FILE = 6 * max(MAX_PAYLOAD, 1024 * 1024) + 64 * 1024


def task_bytes(task_id: str = "bad", **fields: Any) -> bytes:
    """Return a task file; a field that is ... is left out."""
    task = {"id": task_id, "payload": {"n": 1}, "encoding": "json", "priority": 5, "epoch": 0, "nonce": "aa"} | fields
    return json.dumps({k: v for k, v in task.items() if v is not ...}).encode() + b"\n"


#: Content that is no task: what it is -> (the bytes, a word that the dead letter must have for it).
BAD_TASKS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "blank": (b" \n \n", "empty"),
    "torn": (task_bytes()[:25], "not JSON"),
    "zeros": (b"\0" * 4096, "not JSON"),
    "huge": (task_bytes(payload="x" * MAX_FILE), "bytes"),
    "deep list": (b"[" * 100_000, "not JSON"),
    "deep object": (b'{"a":' * 20_000, "not JSON"),
    "deep payload": (task_bytes(payload=...)[:-2] + b', "payload": ' + b"[" * 150 + b"]" * 150 + b"}", "deep"),
    "not UTF-8": (b'{"id": "bad", "payload": "\xff\xfe"}', "UTF-8"),
    "UTF-16": (task_bytes().decode().encode("utf-16"), "UTF-8"),
    "a list": (b"[1, 2]", "list"),
    "a number": (b"7", "int"),
    "null": (b"null", "NoneType"),
    "a text": (b'"bad"', "str"),
    "two objects": (task_bytes() + task_bytes(), "not JSON"),
    "no id": (task_bytes(id=...), "'id'"),
    "id is a number": (task_bytes(id=7), "'id'"),
    "id is an object": (task_bytes(id={}), "'id'"),
    "id of another": (task_bytes(id="other"), "'id'"),
    "id is empty": (task_bytes(id=""), "id"),
    "id is half a character": (task_bytes(id="\ud800"), "id"),
    "id is a path": (task_bytes(id="../../bad"), "'id'"),
    "no payload": (task_bytes(payload=...), "'payload'"),
    "encoding is a number": (task_bytes(encoding=7), "'encoding'"),
    "encoding is a list": (task_bytes(encoding=["json"]), "'encoding'"),
    "encoding is unknown": (task_bytes(encoding="pickle"), "'encoding'"),
    "text is a number": (task_bytes(encoding="text", payload=7), "'encoding'"),
    "base64 is not": (task_bytes(encoding="base64", payload="*"), "base64"),
    "NaN": (task_bytes(payload=float("nan")), "JSON"),
    "Infinity": (task_bytes(payload=[float("-inf")]), "JSON"),
    "number beyond all": (task_bytes(payload=...)[:-2] + b', "payload": 1e999}', "JSON"),
    "half a character": (task_bytes(payload="\ud800"), "JSON"),
    "half a character aside": (task_bytes(created_at="\udfff"), "JSON"),
    "endless number": (task_bytes(payload=...)[:-2] + b', "payload": ' + b"9" * 6000 + b"}", "JSON"),
}

#: Fields that a reader does without: a task is a task in spite of them.
HARMLESS = {
    "priority is a text": task_bytes(priority="high"),
    "priority is huge": task_bytes(priority=10**400),
    "epoch is a list": task_bytes(epoch=[]),
    "nonce is a number": task_bytes(nonce=1.5),
    "created_at is a number": task_bytes(created_at=5),
    "created_at is an object": task_bytes(created_at={"a": []}),
    "no encoding": task_bytes(encoding=...),
    "unknown fields": task_bytes(future={"a": [1]}),
    "no newline": task_bytes().strip(),
}


def _symlink(to: str) -> Callable[[Path, Path], None]:
    def make(path: Path, outside: Path) -> None:
        path.symlink_to({"itself": path, "outside": outside / "secret.json"}.get(to, Path(to)))

    return make


def _socket(path: Path, _: Path) -> None:
    # The address of a socket is at most 108 bytes long, so it is made through the folder's descriptor.
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _folder_with_content(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "inside.json").write_text("{}")


#: What is no regular file: what it is -> how to make it.
STRANGERS: dict[str, Callable[[Path, Path], None]] = {
    "folder": lambda path, _: path.mkdir(),
    "full folder": _folder_with_content,
    "link to passwd": _symlink("/etc/passwd"),
    "link outside": _symlink("outside"),
    "dangling link": _symlink("/nowhere/at/all"),
    "link to itself": _symlink("itself"),
    "link to a device": _symlink("/dev/zero"),
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": _socket,
}


class Place:
    """A queue, and a folder beside it that nothing may touch."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.folder = self.root / "q"
        self.outside = tmp_path / "outside"
        self.outside.mkdir()
        (self.outside / "secret.json").write_bytes(task_bytes())
        (self.outside / "bad.json").write_bytes(task_bytes())
        (self.outside / "bad.lease").write_text("{}")
        self._outside_was = self._look_outside()

    def open(self, **settings: Any) -> dfq.QueueManager:
        given = {"shards": SHARDS, "max_payload": MAX_PAYLOAD, "durability": "fast", "lease": 0.3, **settings}
        return dfq.open_queue("q", self.root, **given)

    def path(self, top: str, task_id: str = "bad", *, suffix: str = ".json", lane: str = "") -> Path:
        """Return where a task's file lies, and make its folder."""
        name = encode(task_id)
        path = self.folder / top / lane / shard_of(name, SHARDS) / f"{name}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def task(self, task_id: str = "bad") -> Path:
        return self.path("frontier", task_id, lane="5")

    def lease(self, task_id: str = "bad") -> Path:
        return self.path("active-leases", task_id, suffix=".lease")

    def _look_outside(self) -> dict[str, tuple[bytes, int, int]]:
        # The time of the last access too; relatime would hide a second read, so it is set back to long ago.
        found = {}
        for path in self.outside.iterdir():
            os.utime(path, (1, 1))
            found[path.name] = (path.read_bytes(), 1, 1)
            os.utime(path, (1, 1))
        return found

    def check_outside(self) -> None:
        """Nothing outside the queue was read, written, added or removed."""
        now = {}
        for path in self.outside.iterdir():
            times = path.stat()
            now[path.name] = (path.read_bytes(), int(times.st_atime), int(times.st_mtime))
            os.utime(path, (1, 1))
        assert now == self._outside_was, "something outside the queue was read or changed"


def work_off_good(queue: dfq.QueueManager, *ids: str, within: float = 5) -> None:
    """Run what the queue hands out until the good tasks are done; nothing else may be handed out."""
    end = time.monotonic() + within
    left = set(ids)
    while left:
        assert time.monotonic() < end, f"the queue does not get to {left}: {list(queue.tasks())}"
        for task in queue.poll(10, wait=0.05):
            assert task.id in left, f"{task} was handed out"
            queue.ack(task)
            left.discard(task.id)


def until(condition: Callable[[], Any], within: float = 5) -> Any:
    """Wait for a condition and return it; fail if it does not come."""
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value


def look_at_everything(queue: dfq.QueueManager, *ids: str) -> None:
    """Every way of looking works, whatever lies in the tree."""
    queue.counts()
    for state in (None, "pending", "leased", "scheduled", "completed", "failed"):
        for info in queue.tasks(state):
            assert isinstance(info.id, str)
            assert repr(info)
    for task_id in ids:
        with contextlib.suppress(dfq.TaskNotFound):
            assert queue.get(task_id).id
