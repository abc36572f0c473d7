"""How a task's processes are kept from outliving their owner, how they are found, and how they are ended.

A process is found by its mark, which stands in its environment, or by descent: what a dead child leaves behind
is handed to the template by the kernel (PR_SET_CHILD_SUBREAPER), whatever it did to its session, its
environment or its descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: In the environment of the template and of everything that a child starts; a nested worker's processes carry
#: the marks of both.
MARK = "DFQ_TASK_MARK"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ENV_START = 50 - 3  # field 50 of /proc/PID/stat, counted from the third: those before may hold spaces
_libc = ctypes.CDLL(None, use_errno=True)  # before any fork: loading a library there is not safe


def new_mark() -> str:
    """Return a mark that no other process carries. All are of one length: one can be written over another."""
    return os.urandom(12).hex()


def dies_with(parent: int) -> Callable[[], None]:
    """Return what a new process calls first so that the kernel kills it when its parent dies."""

    def arrange() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)

    return arrange


def outlives_parent() -> None:
    """Undo dies_with."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def change_mark(was: str, now: str) -> None:
    """Put a mark, in place of another, on this process and on all that it forks or starts from now on."""
    before = os.environ.get(MARK, "")
    os.environ[MARK] = before.replace(was, now) if was in before else f"{before}{now}."
    # What others see of our environment is the memory that the kernel filled when the interpreter was started.
    # A copy of us that never starts a program has no other. If it cannot be found, descent is what is left.
    with contextlib.suppress(OSError):
        at = _read("/proc/self/environ").find(was.encode())
        if at >= 0:
            start = int(_fields(_read("/proc/self/stat"))[_ENV_START])
            memory = os.open("/proc/self/mem", os.O_WRONLY)
            try:
                os.pwrite(memory, now.encode(), start + at)
            finally:
                os.close(memory)


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it was a moment ago."""

    pid: int
    parent: int
    zombie: bool

    def carries(self, *marks: str) -> bool:
        """Tell whether it carries one of these marks. Another user's process never does."""
        try:
            environ = _read(f"/proc/{self.pid}/environ")
        except OSError:
            return False
        found = next((item for item in environ.split(b"\0") if item.startswith(MARK.encode() + b"=")), b"")
        return any(mark.encode() in found for mark in marks)


def processes() -> Iterator[Process]:
    """Iterate over the processes of this machine, but for this one."""
    me = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        try:
            state, parent, *_ = _fields(_read(f"/proc/{name}/stat"))
        except OSError:  # gone
            continue
        yield Process(int(name), int(parent), state in (b"Z", b"X"))


def kill_group(pid: int) -> None:
    """Kill a child and its process group. Call it only while the child's number cannot be another's."""
    for kill in (os.killpg, os.kill):  # the child alone if it is so new that it leads no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill whatever carries a mark, also in sessions of their own, until nothing is left."""
    kill_all(lambda process: process.carries(mark))


def kill_all(ours: Callable[[Process], bool]) -> None:
    """Kill the processes that are ours until none is left."""
    pause = 0.001
    for _ in range(20):  # a process may fork while we look; a fork bomb must not hold us for ever
        found = [process.pid for process in processes() if not process.zombie and ours(process)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause)  # a large process takes a moment to end
        pause = min(2 * pause, 0.05)


def how_it_ended(code: int) -> str:
    """Return an exit code, negative for a signal, as text: `exit 1`, `killed by SIGSEGV`."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _read(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def _fields(stat: bytes) -> list[bytes]:
    """Return what stands after the name, which may hold anything, in a line of /proc/PID/stat."""
    return stat.rpartition(b")")[2].split()
