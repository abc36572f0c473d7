"""How a task's processes are kept from outliving their owner, and how they are ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator

#: In the environment of everything that a child starts; a nested worker's children carry both marks.
MARK = "DFQ_TASK_MARK"

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # before any fork: loading a library there is not safe


def dies_with(parent: int) -> Callable[[], None]:
    """Return what a new process calls first so that the kernel kills it when its parent dies."""

    def arrange() -> None:
        if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)

    return arrange


def kill_group(pid: int) -> None:
    """Kill a child and its process group. Call it only while the child's number cannot be another's."""
    for kill in (os.killpg, os.kill):  # the child alone if it is so new that it leads no group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill whatever a child started, also in sessions of their own, until nothing is left."""
    for _ in range(20):  # a process may fork while we look; a fork bomb must not hold us for ever
        found = list(_marked(mark.encode()))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def mark_environment(mark: str) -> None:
    """Put a mark on every process that this one starts from now on."""
    os.environ[MARK] = f"{os.environ.get(MARK, '')}{mark}."


def how_it_ended(code: int) -> str:
    """Return an exit code, negative for a signal, as text: `exit 1`, `killed by SIGSEGV`."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _marked(mark: bytes) -> Iterator[int]:
    variable = MARK.encode() + b"="
    me = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as f:
                environ = f.read()
        except OSError:  # gone, or another user's
            continue
        if any(mark in item for item in environ.split(b"\0") if item.startswith(variable)):
            yield int(name)
