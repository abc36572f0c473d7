"""Within the machine: processes of the hosts, and what they write down."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nfs_net import Host

import dfq
from dfq.ports import SystemClock
from dfq.slotlog import SlotLog

LEASE = 4.0
SHARDS = 4
PATIENCE = 60.0  # seconds after which something that has to happen counts as not happening
LOGS = Path("/run/logs")
WANTED, SLOW = (
    Path("/run/wanted"),
    Path("/run/silent"),
)  # a process wants a reply to get lost; they are slow enough for that

WHATEVER, NOTHING = "whatever exists is mine", "nothing that exists is mine"
SABOTAGES = ("none", WHATEVER, NOTHING)


class Diary:
    """What a process was told, and when; it outlives the process."""

    def __init__(self, name: str) -> None:
        LOGS.mkdir(exist_ok=True)
        self._fd = os.open(LOGS / name, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + f" {time.monotonic():.3f}\n").encode())


def open_queue(host: Host, name: str) -> dfq.QueueManager:
    return dfq.open_queue(name, host.mount, lease=LEASE, max_attempts=1000, shards=SHARDS)


def forked(host: Host, act: Callable[[], None]) -> int:
    """Run something in a process of a host and return its pid; it exits with 0 if nothing was raised."""
    pid = os.fork()
    if pid:
        return pid
    try:
        host.become()
        ahead, real = host.awake, SystemClock.elapsed
        SystemClock.elapsed = lambda self: real(self) + ahead  # type: ignore[method-assign]
        act()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - a child must not return from here
        traceback.print_exc()
        os._exit(1)


def reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def until(there: Callable[[], Any], patience: float = PATIENCE) -> bool:
    """Wait until something is so; False if it takes too long."""
    end = time.monotonic() + patience
    while not there():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def sabotage(how: str) -> None:
    """Leave the comparison of nonces out, in this process."""
    if how != "none":
        SlotLog._is_mine = lambda self, path, claim: how == WHATEVER  # type: ignore[method-assign]


def note_lost_replies(diary: Diary) -> None:
    """Write down each time that a slot could not be made because we had made it: a reply was lost."""
    compare = SlotLog._is_mine

    def watched(self: SlotLog, path: str, claim: Any) -> bool:
        mine = compare(self, path, claim)
        if mine and path.startswith("active-leases/"):  # the witness's name may have been given by a helper
            diary.write("mine", claim.entry.name, claim.token)
        return mine

    SlotLog._is_mine = watched  # type: ignore[method-assign]


def before_link(queue: dfq.QueueManager, folder: str, act: Callable[[], None]) -> None:
    """Do something each time before a file is given a name in a folder of the queue."""
    disk = queue._disk  # type: ignore[attr-defined]
    link = disk.link

    def wrapped(fd: int, path: str) -> None:
        if path.startswith(folder):
            act()
        link(fd, path)

    disk.link = wrapped


def want_loss(patience: float = PATIENCE) -> None:
    """Ask that the next reply gets lost, and wait until it will."""
    WANTED.touch()
    until(SLOW.exists, patience)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nobody's wish to lose replies is left behind."""
    for flag in (WANTED, SLOW):
        flag.unlink(missing_ok=True)
    try:
        yield
    finally:
        for flag in (WANTED, SLOW):
            flag.unlink(missing_ok=True)


def now_and_then(chance: random.Random, share: float, act: Callable[[], None]) -> Callable[[], None]:
    def maybe() -> None:
        if chance.random() < share:
            act()

    return maybe
