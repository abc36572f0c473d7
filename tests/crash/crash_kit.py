"""Ways to die and to be hindered, shared by the tests in this folder: a disk that does it at a chosen call."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dfq.config import Settings
from dfq.ports import Disk, OsDisk
from dfq.providers.filesystem import FilesystemQueue

#: The calls of a Disk: each is a point at which a process may end.
CALLS = frozenset(name for name, what in vars(Disk).items() if callable(what) and not name.startswith("_"))
#: Those that want room on the device.
WRITING = frozenset(
    ["create", "unnamed", "link", "link_path", "write", "fsync", "fsync_dir", "sync_all", "mkdir", "touch"]
)

OPEN_STATES = ("frontier", "scheduled", "active-leases", "failed")


class WatchedDisk:
    """An OsDisk that tells of every call before it is made, once it is armed."""

    def __init__(self, folder: Path, before: Callable[[int, str, tuple[Any, ...]], None] | None = None) -> None:
        self._inner = OsDisk(str(folder))
        self.local = self._inner.local
        self.before = before
        self.armed = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in CALLS:
            return method

        def call(*args: Any, **options: Any) -> Any:
            if not self.armed:
                return method(*args, **options)
            self.calls.append(name)
            if self.before is None:
                return method(*args, **options)
            try:
                self.before(len(self.calls), name, args)
            except OSError:
                if name == "close":
                    method(*args, **options)  # the kernel frees the descriptor even if it reports an error
                raise
            return method(*args, **options)

        return call


def open_on(disk: Any, folder: Path, **settings: Any) -> FilesystemQueue:
    """Open the queue in a folder over a disk of our own."""
    folder.mkdir(exist_ok=True)
    given = {"root": folder.parent, "lease": 60.0, "shards": 1, **settings}
    return FilesystemQueue(folder.name, Settings(**given), disk, where=str(folder))


def open_plain(folder: Path, **settings: Any) -> FilesystemQueue:
    folder.mkdir(exist_ok=True)
    return open_on(OsDisk(str(folder)), folder, **settings)


def die() -> NoReturn:
    """End this process as a power cut to it would: nothing is flushed, nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def forked(run: Callable[[], None]) -> int:
    """Run something in a child process and return its pid; it exits with 0 if nothing was raised."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, a child must not return into pytest
        traceback.print_exc()
    finally:
        os._exit(code)


def reap(pid: int) -> int:
    """Wait for a child: its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def files(folder: Path, *tops: str) -> list[str]:
    """Return what lies in some of a queue's folders, without the folders themselves."""
    return sorted(
        str(path.relative_to(folder))
        for top in tops
        for path in (folder / top).rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def witnesses(folder: Path) -> dict[str, dict[str, Any]]:
    """Return every witness by the id that it speaks for."""
    found: dict[str, dict[str, Any]] = {}
    for path in (folder / "completed").rglob("*.json"):
        record = json.loads(path.read_bytes())
        assert record["task_id"] not in found, f"two witnesses for {record['task_id']}"
        found[record["task_id"]] = record
    return found


def work_off(folder: Path, *, within: float = 10, **settings: Any) -> list[str]:
    """Do everything that is to be done, dead letters too, as a worker that comes along later; return what it ran."""
    ran: list[str] = []
    end = time.monotonic() + within
    with open_plain(folder, **settings) as queue:
        while True:
            for task in queue.poll(100):
                queue.ack(task, result="later")
                ran.append(task.id)
            queue.retry()
            counts = queue.counts()
            if counts.pending + counts.leased + counts.scheduled + counts.failed == 0:
                break
            assert time.monotonic() < end, f"not worked off: {counts}, {files(folder, *OPEN_STATES)}"
            time.sleep(0.005)
    if files(folder, *OPEN_STATES):
        with open_plain(folder, **settings) as queue:
            assert queue.poll(wait=0.1) == []  # idle for a moment, which is when a queue clears up
    return ran


def assert_over(folder: Path, *ids: str) -> None:
    """Every task has its one witness, and nothing else is left of it."""
    found = sorted(witnesses(folder))
    assert found == sorted(ids), f"witnesses of {found} instead of {sorted(ids)}"
    left = files(folder, *OPEN_STATES)
    assert left == [], f"{left} were left"
    assert [path.name for path in folder.rglob(".*")] == [], "temporary files were left"


def open_descriptors(*, collect: bool = False) -> int:
    if collect:
        gc.collect()
    return len(os.listdir("/proc/self/fd"))
