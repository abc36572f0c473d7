"""Promises about locks: how the queue learns at once that a worker is dead.

No process is forked here while this one has a file open whose lock it tried: the new one would share it.
"""

from __future__ import annotations

import mmap
import os
import signal
import time

from dfq.verify_fs.processes import Helper, fork
from dfq.verify_fs.promise import WON, Broken, Ground

PATIENCE = 5.0  # seconds after which a lock of a dead process counts as stuck
_OVERLAP = 3


def between_processes(ground: Ground) -> str:
    disk = ground.disk
    _file(ground, "lock")
    with Helper(lambda helper: _hold(ground, helper, "lock")) as helper:
        helper.ready()
        if _is_free(ground, "lock"):
            raise Broken("a lock that another process holds was to be had")
    _file(ground, "turns")

    with mmap.mmap(-1, 1) as busy:

        def step(round_: int, racer: int) -> int:
            fd = disk.open("turns", write=True)
            try:
                disk.lock(fd)
                overlap = busy[0] != 0
                busy[0] = 1
                os.sched_yield()
                busy[0] = 0
            finally:
                disk.close(fd)
            return _OVERLAP if overlap else WON

        results = ground.race(step)
    overlaps = sum(_OVERLAP in fared for fared in results)
    if overlaps:
        raise Broken(f"two processes held the same lock in {overlaps} of {len(results)} rounds")
    return f"one holder at a time in {ground.raced}"


def ends_with_its_process(ground: Ground) -> str:
    _file(ground, "killed")
    with Helper(lambda helper: _hold(ground, helper, "killed")) as helper:
        helper.ready()
        started = time.monotonic()
        helper.kill()
    took = _free_after(ground, "killed", started)
    if took is None:
        raise Broken(f"the lock of a process that was killed was still held {PATIENCE:.0f} s later")
    return f"free {took * 1000:.0f} ms after kill -9"


def and_not_before(ground: Ground) -> str:
    _file(ground, "copied")
    with Helper(lambda helper: _hold_twice(ground, helper)) as helper:
        helper.ready()
        if _is_free(ground, "copied"):
            raise Broken("the lock went when its holder opened and closed the same file once more")
        helper.kill()  # what it forked has the descriptor still, and waits at the same socket
        if _is_free(ground, "copied"):
            raise Broken("the lock went with its process although a forked child still has the descriptor")
        helper.say()
        ended = not helper.hear()
    if not ended or _free_after(ground, "copied", time.monotonic()) is None:
        raise Broken("the lock was still held after the last process that had it was gone")
    return "stays while a forked child has the descriptor"


def _hold_twice(ground: Ground, helper: Helper) -> None:
    fd = ground.disk.open("copied", write=True)
    ground.disk.lock(fd)
    ground.disk.close(ground.disk.open("copied"))
    fork(helper.hear, bound=False)  # it ends with a word from the checker, or with the checker
    helper.say()
    signal.pause()  # until we are killed


def _hold(ground: Ground, helper: Helper, path: str) -> None:
    fd = ground.disk.open(path, write=True)
    ground.disk.lock(fd)
    helper.say()
    helper.hear()
    ground.disk.close(fd)


def _file(ground: Ground, path: str) -> None:
    ground.disk.close(ground.disk.create(path))


def _is_free(ground: Ground, path: str) -> bool:
    fd = ground.disk.open(path)
    try:
        return ground.disk.try_lock(fd)
    finally:
        ground.disk.close(fd)


def _free_after(ground: Ground, path: str, started: float) -> float | None:
    """Return how long after `started` the lock was to be had; None if it never was."""
    while time.monotonic() - started < PATIENCE:
        if _is_free(ground, path):
            return time.monotonic() - started
        time.sleep(0.001)
    return None
