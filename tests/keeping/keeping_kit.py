"""A queue on the real disk whose time is told by the test."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from dfq.config import Settings
from dfq.ports import Machine, OsDisk
from dfq.providers.filesystem import FilesystemQueue

HOUR, DAY = 3600.0, 86400.0


class Clock:
    """Both clocks of a machine, which go faster than ours when told to."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._jump = 0.0

    def wall(self) -> float:
        return time.time() + self._elapsed + self._jump

    def elapsed(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self._elapsed

    def pass_by(self, seconds: float) -> None:
        self._elapsed += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as NTP does."""
        self._jump += seconds


class TimedDisk(OsDisk):
    """A disk whose files get their times from such a clock."""

    def __init__(self, folder: str, clock: Clock) -> None:
        super().__init__(folder)
        self._clock = clock

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, data)
        os.utime(fd, (self._clock.wall(), self._clock.wall()))


class House:
    """A folder with a queue, and processes that come and go."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.clock = Clock()
        self.settings = {"shards": 1, "durability": "fast", "lease": 60.0} | settings
        self.boot = "boot-1"
        self._open: list[FilesystemQueue] = []

    def queue(self, **more: Any) -> FilesystemQueue:
        machine = Machine("pi", self.boot, 1, f"pi-1-{len(self._open)}")
        settings = Settings(**(self.settings | more))
        disk = TimedDisk(str(self.folder), self.clock)
        queue = FilesystemQueue("q", settings, disk, clock=self.clock, machine=machine, where=str(self.folder))
        self._open.append(queue)
        return queue

    def live(self, queue: FilesystemQueue, seconds: float, step: float = 600.0) -> None:
        """Let time pass while a process polls now and then, as an idle worker does."""
        left = seconds
        assert queue.poll() == []
        while left > 0:
            self.clock.pass_by(min(step, left))
            left -= step
            assert queue.poll() == []

    def files(self, *folders: str) -> list[str]:
        return sorted(
            str(p.relative_to(self.folder)) for f in folders for p in (self.folder / f).rglob("*") if p.is_file()
        )

    def close(self) -> None:
        for queue in self._open:
            queue.close()
