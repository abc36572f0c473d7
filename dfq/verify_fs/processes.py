"""Processes that race each other, and one that is told what to do.

They are forked: what they do goes through the same calls as in the process that checks on them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable
from types import TracebackType

from dfq.work.guard import dies_with

PATIENCE = 20.0  # seconds that one step may take before a process counts as stuck
_BUG = 255  # how a process ends for a reason that is not the system's


def fork(body: Callable[[], object], *, bound: bool = True) -> int:
    """Run body in a process of its own and return its number; if bound, it dies with its parent.

    It ends with 0, or with the number of the OSError that stopped it.
    """
    arrange = dies_with(os.getpid())
    pid = os.fork()
    if pid:
        return pid
    code = _BUG
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # cleaning up is the parent's business
        if bound:
            arrange()
        body()
        code = 0
    except OSError as e:
        code = e.errno or _BUG
    finally:
        os._exit(code)


def end(pid: int) -> None:
    """Kill a child and wait for it; one that the kernel does not let go is left to it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.001)


class Race:
    """Some processes that take the same step at the same moment, round after round."""

    def __init__(self, processes: int, rounds: int) -> None:
        self.processes = processes
        self.rounds = rounds

    def run(self, step: Callable[[int, int], int]) -> list[bytes]:
        """Call step(round, racer) in each of the processes; return what they returned, one byte each, by round.

        An OSError that a step raises stops the race and is raised here.
        """
        size = self.processes * self.rounds
        with mmap.mmap(-1, 2 * size) as shared:
            racers = []
            try:
                for racer in range(self.processes):
                    racers.append(fork(lambda racer=racer: self._race(shared, racer, step)))  # type: ignore[misc]
                self._see_off(racers, shared)
            finally:
                for pid in racers:
                    end(pid)
            results = shared[size : 2 * size]
        return [results[at : at + self.processes] for at in range(0, size, self.processes)]

    def _race(self, shared: mmap.mmap, racer: int, step: Callable[[int, int], int]) -> None:
        size = self.processes * self.rounds
        everybody = b"\1" * self.processes
        for round_ in range(self.rounds):
            at = round_ * self.processes
            shared[at + racer] = 1
            deadline = time.monotonic() + PATIENCE
            while shared[at : at + self.processes] != everybody:
                os.sched_yield()  # more racers than cores are to start as close together as can be
                if time.monotonic() > deadline:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            shared[size + at + racer] = step(round_, racer)

    def _see_off(self, racers: list[int], shared: mmap.mmap) -> None:
        left, looked = -1, -PATIENCE
        while racers:
            for pid in list(racers):  # whichever ends first: one that failed would let the others wait for it
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    racers.remove(pid)
                    raise_ending(status)
            if racers and time.monotonic() - looked > PATIENCE:  # racers that are all stuck tell nobody
                before, left = left, shared[:].count(0)
                if left == before:
                    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                looked = time.monotonic()
            time.sleep(0.001)


def raise_ending(status: int) -> None:
    """Raise the OSError that a forked process ended with; nothing if it ended well."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return
    if 0 < code < _BUG:
        raise OSError(code, os.strerror(code))
    raise OSError(errno.ECHILD, f"a process of the test ended with {code}")


class Helper:
    """A process that does something, says so with a byte, and waits for a word to end."""

    def __init__(self, body: Callable[[Helper], object]) -> None:
        self._ours, theirs = socket.socketpair()
        checker = self._ours

        def run() -> None:
            checker.close()  # so that whoever waits at the other end learns of our end
            self._ours = theirs
            body(self)

        self.pid = fork(run)
        theirs.close()
        self._ours.settimeout(PATIENCE)

    def say(self) -> None:
        """Tell the other side that this one has come so far."""
        self._ours.send(b".")

    def hear(self) -> bool:
        """Wait until the other side has come so far; False if it ended."""
        return self._ours.recv(1) != b""

    def wait_for_end(self) -> None:
        """Wait until the process has ended; raise what stopped it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.pid = 0
                return raise_ending(status)
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            time.sleep(0.001)

    def ready(self) -> None:
        """Wait until the helper says something; raise what stopped it if it ended instead."""
        if not self.hear():
            self.wait_for_end()

    def kill(self) -> None:
        """Kill it with -9, and wait until it is gone."""
        if self.pid:
            end(self.pid)
        self.pid = 0

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        self._ours.close()
