"""A queue to be damaged, shared by the tests in this folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from dfq.config import Settings
from dfq.errors import LeaseLost
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.check import check_queue
from dfq.providers.filesystem.faults import Finding
from dfq.queue import Task
from dfq.tree import Tree

SHARDS = 4
LONG_AGO = 7200  # seconds


class Ground:
    """A queue in a folder, and what a test does to it behind its back."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.root = tmp_path / "root"
        self.folder = self.root / "q"
        self.root.mkdir()
        self.settings = Settings(
            **{"root": self.root, "shards": SHARDS, "durability": "fast", "max_attempts": 1, "lease": 60.0} | settings
        )
        self.tree = Tree(SHARDS)
        self.queue = self.open()

    def open(self) -> FilesystemQueue:
        return FilesystemQueue.open("q", self.settings)

    def check(self, *, repair: bool = False) -> list[Finding]:
        return list(check_queue("q", self.settings, repair=repair, settle=0))

    # -- where things are --------------------------------------------------------------------------

    def path(self, relative: str) -> Path:
        """Return a path in the queue, and make its folder."""
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def task(self, name: str = "t", lane: int = 5) -> Path:
        return self.path(self.tree.entry(name, lane).path)

    def slot(self, generation: int = 1, name: str = "t") -> Path:
        return self.path(self.tree.slot(name, generation))

    def completed(self, name: str = "t") -> Path:
        return self.path(self.tree.completed(name))

    def failed(self, name: str = "t") -> Path:
        return self.path(self.tree.failed(name))

    def retired(self, name: str = "t") -> Path:
        return self.path(self.tree.retired(name))

    def scheduled(self) -> Path:
        """Return where the one scheduled task lies."""
        (path,) = (self.folder / "scheduled").glob("*/*.json")
        return path

    # -- what happens ------------------------------------------------------------------------------

    def push(self, name: str = "t", **options: Any) -> None:
        self.queue.push({"n": 1}, id=name, **options)

    def claim(self) -> Task:
        (task,) = self.queue.poll(wait=5)
        return task

    def done(self, name: str = "t") -> None:
        self.push(name)
        self.queue.ack(self.claim(), result="first")

    def dead(self, name: str = "t") -> None:
        self.push(name)
        self.queue.nack(self.claim(), error="no use")

    def kept(self, path: Path) -> bytes:
        """Return the bytes of a file that a test puts back somewhere else."""
        return path.read_bytes()

    def change(self, path: Path, **fields: Any) -> None:
        """Change fields of a file in place."""
        path.write_text(json.dumps(json.loads(path.read_bytes()) | fields) + "\n")

    def work_off(self, *ids: str) -> None:
        """Complete everything that waits, and see that these ids are done, each with one witness."""
        end = time.monotonic() + 20
        while not all(self.completed(name).exists() for name in ids):
            with self.open() as queue:  # a new one each time: it has lost nothing, so it tries everything
                assert time.monotonic() < end, list(queue.tasks())
                for task in queue.poll(10, wait=1.5):
                    with contextlib.suppress(LeaseLost):  # a slot that is above a gap is in its way
                        queue.ack(task, result="later")
                queue.retry()
        for name in ids:
            assert len(list((self.folder / "completed").rglob(f"{name}.json"))) == 1

    def tree_of_files(self) -> dict[str, bytes]:
        """Return every file and what it says."""
        found = {}
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    found[str(path.relative_to(self.folder))] = path.read_bytes()
        return found


def age(path: Path, seconds: float = LONG_AGO) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
