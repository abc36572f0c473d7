"""Queues on a real disk that targets write one bad file into, and a disk that no path may leave."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_oracle import Violation, need

from dfq.config import Settings
from dfq.ports import Machine, OsDisk
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.tiles import index_folders
from dfq.stores.disk import DiskStore
from dfq.tree import Tree

BAD = "bad"  # the id that every bad file claims to be of
PLACE = "FUZZ_PLACE"  # the environment variable that says where to put it
SHARDS = 4
MAX_DEPTH = 100  # what the format promises; the code under test is not asked
TREE = Tree(SHARDS)


class StillClock:
    """A clock that stands, so that an input does the same each time."""

    def wall(self) -> float:
        return 1_800_000_000.0

    def elapsed(self) -> float:
        return 50_000.0


CLOCK = StillClock()
MACHINE = Machine("fuzz", "b" * 36, 7, "fuzz-7-aaaaaa")


class FencedDisk(OsDisk):
    """A disk that cries out when it is given a path that leaves its folder."""

    def where(self, path: str) -> str:
        if ".." in path.split("/") or path.startswith("/") or "\0" in path:
            raise Violation(f"a path leaves the queue: {path[:100]!r}")
        return super().where(path)


class Place:
    """A folder with an owned queue and an index queue in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.tiles = folder / "tiles"
        self.witnesses = folder / "witnesses"
        for made in (self.root, self.tiles, self.witnesses, folder / "home"):
            made.mkdir()

    def open(self, name: str = "q", **more: Any) -> FilesystemQueue:
        """Open a queue with a clock that stands."""
        given: dict[str, Any] = {"root": self.root, "shards": SHARDS, "durability": "fast", **more}
        settings = Settings(**given)
        folder = str(self.root / name)
        os.makedirs(folder, exist_ok=True)
        disk = FencedDisk(folder, local=True, elsewhere=index_folders(settings, folder))
        return FilesystemQueue(name, settings, disk, clock=CLOCK, machine=MACHINE, where=folder)

    def index(self) -> FilesystemQueue:
        mode: dict[str, Any] = {"frontier_mode": "index", "frontier": self.tiles, "completed": self.witnesses}
        return self.open("index", refresh_after=60.0, **mode)

    def store(self, name: str = "q") -> DiskStore:
        return DiskStore(FencedDisk(str(self.root / name), local=True), durable=False)


def scratch(prefix: str) -> Path:
    """Return a new folder, in memory where that can be: a parser does not care, and it is ten times as fast."""
    memory = "/dev/shm"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=memory if os.access(memory, os.W_OK) else None))


@cache
def place() -> Place:
    """Return the place of this process; it is removed at its end, unless whoever started us does that."""
    if given := os.environ.get(PLACE):
        return Place(Path(given))
    folder, pid = scratch("dfq-fuzz-"), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == pid else None)
    return Place(folder)


@cache
def owned() -> FilesystemQueue:
    """Return a queue in which files are replaced, one after the other."""
    return place().open()


@cache
def index() -> FilesystemQueue:
    """Return an index queue with one tile."""
    (place().tiles / "a").mkdir(exist_ok=True)
    (place().tiles / "a" / "tile.csv").write_bytes(b"x")
    return place().index()


def put(path: str, data: bytes, queue: str = "q") -> Path:
    """Write a file of a queue, by its path within the queue."""
    file = place().root / queue / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


@contextlib.contextmanager
def files(*contents: tuple[str, bytes]) -> Any:
    """Write files of the owned queue, for as long as a block lasts; what came of them is removed as well."""
    owned()
    try:
        for path, data in contents:
            put(path, data)
        yield
    finally:
        for top in ("frontier", "active-leases", "completed", "failed", "retired", "scheduled"):
            shutil.rmtree(place().root / "q" / top, ignore_errors=True)
        owned()._store._ready.clear()
        owned()._store._real.clear()


def task(task_id: str = BAD) -> bytes:
    """Return the file of a good task."""
    record = {"id": task_id, "payload": {"n": 1}, "encoding": "json", "priority": 5, "epoch": 0, "nonce": "aa"}
    return json.dumps(record).encode()


def depth(value: Any) -> int:
    """Return how deep a JSON value is nested, whatever the code under test thinks of it."""
    deepest, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        deepest += 1
        inner = [c for item in level for c in (item.values() if isinstance(item, dict) else item)]
        level = [c for c in inner if isinstance(c, dict | list)]
    return deepest


def check_shallow(value: Any, extra: int = 1) -> None:
    """Whatever was read is nested no deeper than the format allows; a file is a level around its payload."""
    found = depth(value)
    need(found <= MAX_DEPTH + extra + 1, f"it was read although it is {found} levels deep")
