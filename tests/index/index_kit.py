"""An index on the real disk: a tree of tiles, a tree of witnesses, and a queue over them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dfq
from dfq.config import Settings
from dfq.ports import Clock, OsDisk
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.tiles import index_folders

DAY = 86400.0


def claim(queue: dfq.QueueManager, wait: float = 5) -> dfq.Task:
    """Return the next task."""
    (task,) = queue.poll(wait=wait)
    return task


class Ahead:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.by = 0.0
        self.jumped = 0.0

    def wall(self) -> float:
        return time.time() + self.by + self.jumped

    def elapsed(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.by

    def jump(self, seconds: float) -> None:
        """Set the time of day, as an NTP client does."""
        self.jumped += seconds


class Index:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tiles = folder / "target-tiles"
        self.witnesses = folder / "scraped-tiles"
        self.tiles.mkdir()
        self._open: list[dfq.QueueManager] = []

    def add(self, path: str, content: bytes | str = b"") -> None:
        file = self.tiles / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "frontier": self.tiles,
            "completed": self.witnesses,
            "frontier_mode": "index",
            "durability": "fast",
            **more,
        }

    def queue(self, **more: Any) -> FilesystemQueue:
        queue = dfq.open_queue("tiles", self.folder / "root", **self.settings(**more))
        assert isinstance(queue, FilesystemQueue)
        self._open.append(queue)
        return queue

    def queue_with(self, clock: Clock, **more: Any) -> FilesystemQueue:
        """Open it with a clock of our own."""
        folder = self.folder / "root" / "tiles"
        folder.mkdir(parents=True, exist_ok=True)
        settings = Settings(**self.settings(**more))
        disk = OsDisk(str(folder), elsewhere=index_folders(settings, str(folder)))
        queue = FilesystemQueue("tiles", settings, disk, clock=clock, where=str(folder))
        self._open.append(queue)
        return queue

    def snapshot(self) -> dict[str, tuple[bytes | None, int]]:
        """Return all of the tiles' tree, with the times of files and folders."""
        return {
            str(p.relative_to(self.tiles)): (p.read_bytes() if p.is_file() else None, p.stat().st_mtime_ns)
            for p in [self.tiles, *self.tiles.rglob("*")]
        }

    def close(self) -> None:
        for queue in self._open:
            queue.close()
