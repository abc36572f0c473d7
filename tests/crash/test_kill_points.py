"""A process may end, or the disk refuse, at any call of any operation: fsck knows what is left, and nothing is lost.

These are the calls of the queue's own port. That a worker goes on from a kill at any call of the kernel is shown in
tests/machine/calls.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from crash_kit import (
    OPEN_STATES,
    WRITING,
    WatchedDisk,
    assert_over,
    die,
    files,
    forked,
    open_descriptors,
    open_on,
    open_plain,
    reap,
    work_off,
)
from crash_operations import OPERATIONS, Operation, check_what_is_left

import dfq
from dfq import staleness
from dfq.providers.filesystem import FilesystemQueue

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(params=OPERATIONS, ids=lambda o: o.name)
def operation(request: pytest.FixtureRequest) -> Operation:
    return request.param


@pytest.fixture(params=["full", "fast"])
def durability(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folders() -> Iterator[Path]:
    """A place in memory where there is one: thousands of flushes of a real device prove nothing more here."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    # An empty lease counts as held for a second. Dozens of kill points leave one; a twentieth will do.
    monkeypatch.setattr(staleness, "TORN_GRACE", 0.05)


def calls_of(operation: Operation, folder: Path, durability: str) -> list[str]:
    """Run an operation to its end, and tell which calls it makes."""
    disk = WatchedDisk(folder)
    with open_on(disk, folder, durability=durability, **operation.settings) as queue:
        scene = operation.before(queue)
        disk.armed = True
        operation.act(queue, scene)
        disk.armed = False
        if isinstance(scene, FilesystemQueue):
            scene.close()
    shutil.rmtree(folder)
    return disk.calls


@dataclass(frozen=True)
class Killed:
    """What a process left that was killed."""

    folder: Path
    where: str
    returned: bool  # it had done everything


def kill_before_each_call(operation: Operation, folders: Path, settings: dict[str, Any]) -> Iterator[Killed]:
    """Kill a process before its first call, another one before its second, and so on to the end."""
    k, returned = 0, False
    while not returned:
        k += 1
        folder, ended, log = folders / f"q{k}", folders / "returned", folders / "calls"

        def victim(folder: Path = folder, ended: Path = ended, log: Path = log, k: int = k) -> None:
            def before(n: int, _name: str, _args: tuple[Any, ...]) -> None:
                if n == k:
                    log.write_text(" ".join(disk.calls[-3:]))
                    die()

            disk = WatchedDisk(folder, before)
            queue = open_on(disk, folder, **settings)
            scene = operation.before(queue)
            disk.armed = True
            operation.act(queue, scene)
            ended.touch()
            die()

        assert reap(forked(victim)) == -signal.SIGKILL
        returned = ended.exists()
        where = "killed after it had returned" if returned else f"killed before call {k} (… {log.read_text()})"
        yield Killed(folder, where, returned)
        shutil.rmtree(folder)
    assert k > 3, "it hardly touched the disk: this proves nothing"


def test_fsck_knows_and_repairs_what_a_killed_process_leaves(operation: Operation, folders: Path) -> None:
    settings = {"durability": "fast", **operation.settings}
    for left in kill_before_each_call(operation, folders, settings):
        with open_plain(left.folder, **settings) as queue:
            found = list(queue.fsck(settle=0))
            assert [f for f in found if f.level == "must"] == [], left.where
            repaired = list(queue.fsck(repair=True, settle=0))
            assert [f for f in repaired if f.repairable and not f.repaired] == [], left.where
            assert [f for f in queue.fsck(settle=0) if f.repairable] == [], left.where
        check_what_is_left(operation, left.folder, settings, left.where, returned=left.returned)
        with open_plain(left.folder, **settings) as queue:
            assert list(queue.fsck(settle=0)) == [], left.where


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_the_disk_may_refuse_any_call(operation: Operation, durability: str, code: int, folders: Path) -> None:
    calls = calls_of(operation, folders / "count", durability)
    settings = {"durability": durability, **operation.settings}
    for k, name in enumerate(calls, 1):
        if code == errno.ENOSPC and name not in WRITING:
            continue
        folder = folders / f"q{k}"
        where = f"{errno.errorcode[code]} at call {k} of {len(calls)} ({', '.join(calls[max(0, k - 3) : k])})"
        before = open_descriptors()
        _refuse_one_call(operation, folder, settings, code, k, where)
        left = open_descriptors()
        assert (left if left == before else open_descriptors(collect=True)) == before, f"{where}: a descriptor leaks"
        work_off(folder, **settings)
        try:
            assert_over(folder, "t", "other")
        except AssertionError as e:
            raise AssertionError(f"{where}: {e}") from None
        shutil.rmtree(folder)


def _refuse_one_call(
    operation: Operation, folder: Path, settings: dict[str, Any], code: int, k: int, where: str
) -> None:
    def refuse(n: int, _name: str, _args: tuple[Any, ...]) -> None:
        if n == k:
            raise OSError(code, os.strerror(code))

    disk = WatchedDisk(folder, refuse)
    with open_on(disk, folder, **settings) as queue:
        scene = operation.before(queue)
        disk.armed = True
        complaint = ""
        got: Any = None
        try:
            got = operation.act(queue, scene)
        except dfq.QueueUnavailable as e:
            complaint = str(e)
        disk.armed = False
        failed = complaint != ""
        assert not failed or os.strerror(code) in complaint, where
        assert not failed or str(folder) in complaint, f"{where}: {complaint!r} does not say where"
        # The same queue object goes on: with this task, and with others.
        if failed and operation.name in ("ack", "nack", "bury", "heartbeat"):
            try:
                operation.act(queue, scene)
            except dfq.LeaseLost:
                assert operation.name in ("nack", "bury"), f"{where}: the lease was still ours"
        if failed and operation.name.startswith("cancel"):
            with contextlib.suppress(dfq.TaskNotFound):
                queue.cancel("t")
            assert queue.get("t").cancelled, where
        if failed and operation.pushes:
            queue.push({"n": 1}, id="t", if_exists="skip")
        queue.push({"n": 2}, id="other")
        for task in got if isinstance(got, list) and operation.name not in ("retry",) else []:
            if isinstance(task, dfq.Task):
                queue.ack(task)
        end = time.monotonic() + 5
        while queue.get("other").state != "completed":
            assert time.monotonic() < end, f"{where}: the rest of the queue stands still: {files(folder, *OPEN_STATES)}"
            for task in queue.poll(10, wait=0.05):
                queue.ack(task)
        if isinstance(scene, FilesystemQueue):
            scene.close()
            del scene.held  # type: ignore[attr-defined]
