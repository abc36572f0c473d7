"""A disk that fails or lies on demand, and clocks that can be moved, shared by the tests in this folder."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dfq
from dfq.config import Settings
from dfq.ports import Facts, Found, OsDisk
from dfq.providers.filesystem import FilesystemQueue

HELD: list[dfq.Task] = []  # a task that is dropped goes back to the queue
PATIENCE = 20.0  # seconds that a test waits for something that takes milliseconds


class MovedClock:
    """The clocks of this machine, put forward; the wall clock may be put elsewhere as well."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.wall_off = 0.0

    def wall(self) -> float:
        return time.time() + self.ahead + self.wall_off

    def elapsed(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.ahead


class OddDisk(OsDisk):
    """An OsDisk that counts its calls, refuses some and may tell other times than the true ones."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.refuse: Callable[[str, str], bool] = lambda call, path: False
        self.code = errno.EIO
        self.time_of: Callable[[str, int], int] = lambda path, mtime_ns: mtime_ns
        self.calls: Counter[str] = Counter()
        self.paths: list[tuple[str, str]] = []

    def _count(self, call: str, path: str) -> None:
        self.calls[call] += 1
        self.paths.append((call, path))
        if self.refuse(call, path):
            raise OSError(self.code, os.strerror(self.code), path)

    def scan(self, path: str, *, times: bool = False) -> list[Found]:
        self._count("scan", path)
        return super().scan(path, times=times)

    def look(self, path: str) -> Facts | None:
        self._count("look", path)
        facts = super().look(path)
        return facts and facts._replace(mtime_ns=self.time_of(path, facts.mtime_ns))

    def open(self, path: str, *, write: bool = False) -> int:
        self._count("open", path)
        return super().open(path, write=write)

    def link_path(self, source: str, path: str) -> None:
        self._count("link_path", path)
        super().link_path(source, path)

    def unlink(self, path: str) -> bool:
        self._count("unlink", path)
        return super().unlink(path)

    def forget(self) -> None:
        """Count from zero."""
        self.calls.clear()
        self.paths.clear()


class Place:
    """A queue's folder, opened by as many as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = MovedClock()
        self.opened: list[FilesystemQueue] = []
        folder.mkdir(parents=True)

    def open(self, **settings: Any) -> FilesystemQueue:
        given = {"root": self.folder.parent, "durability": "fast", "shards": 4, "lease": 600.0, **settings}
        disk = OddDisk(str(self.folder))
        queue = FilesystemQueue(self.folder.name, Settings(**given), disk, clock=self.clock, where=str(self.folder))
        self.opened.append(queue)
        return queue

    def settle(self) -> None:
        """Let the times of all folders become old."""
        for path in [self.folder, *self.folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                os.utime(path, (time.time() - 100, time.time() - 100 - os.getpid() % 50 - 0.1234))


def odd(queue: FilesystemQueue) -> OddDisk:
    """Return the disk of a queue."""
    assert isinstance(queue._disk, OddDisk)
    return queue._disk


def ids(tasks: list[dfq.Task]) -> list[str]:
    """Return the ids of tasks, in order; they are held until the test is over."""
    HELD.extend(tasks)
    return sorted(task.id for task in tasks)


def until(check: Callable[[], Any], what: str) -> Any:
    """Wait for something to become true."""
    end = time.monotonic() + PATIENCE
    while not (found := check()):
        assert time.monotonic() < end, f"it does not come true that {what}"
        time.sleep(0.005)
    return found


class Polling(threading.Thread):
    """Polls once, in a thread."""

    def __init__(self, queue: FilesystemQueue, wait: float = 60) -> None:
        super().__init__(daemon=True)
        self.queue, self.wait = queue, wait
        self.got: list[dfq.Task] | None = None
        self.start()

    def run(self) -> None:
        self.got = self.queue.poll(wait=self.wait)

    def result(self, within: float = PATIENCE) -> list[dfq.Task]:
        self.join(within)
        assert self.got is not None, f"still asleep after {within} s"
        return self.got


def count_looks(queue: FilesystemQueue, wait: float) -> int:
    """Return how often a poll of so many seconds, which finds nothing, looks."""
    take, looks = queue._take, []

    def counted(*args: Any) -> list[dfq.Task]:
        looks.append(1)
        return take(*args)

    queue._take = counted  # type: ignore[method-assign]
    assert queue.poll(wait=wait) == []
    queue._take = take  # type: ignore[method-assign]
    return len(looks)
