"""What handlers and commands print: shown on the worker's stderr, and no harm done when nobody reads it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from typing import Any

_mid_line = False  # what was shown last did not end its line


def fill_standard_descriptors() -> None:
    """Open 0, 1 and 2 if they are closed: the next file or socket would become this process's stderr."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def survive_readers() -> None:
    """Make sys.stdout and sys.stderr go on, into nothing, when whoever read them has gone."""
    sys.stdout, sys.stderr = (
        # By the line: what a handler prints is seen when it prints it.
        io.TextIOWrapper(
            io.BufferedWriter(_Shown(fd, "wb", closefd=False)), errors="backslashreplace", line_buffering=True
        )
        for fd in (1, 2)
    )


def look_for_readers() -> None:
    """Turn stdout and stderr into nothing if nobody reads them: programs that a task starts write there too."""
    poller = select.poll()
    for fd in (1, 2):
        poller.register(fd, 0)
    for fd, event in poller.poll(0):
        if event & (select.POLLERR | select.POLLHUP):
            _to_nothing(fd)


def show(data: bytes | memoryview, fd: int = 2) -> None:
    """Write to the worker's stderr, if that can be done."""
    global _mid_line
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError as e:  # a log that cannot be written is no reason to fail a task
        if e.errno in (errno.EPIPE, errno.EIO):
            _to_nothing(fd)
    if data:
        _mid_line = data[-1] != ord("\n")


def end_line() -> None:
    """End the line that a task began, so that the next one, perhaps of JSON, has a line of its own."""
    if _mid_line:
        show(b"\n")


def flush() -> None:
    """Write out what sys.stdout and sys.stderr hold back, if they can."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # a handler may have put anything there, also None
            stream.flush()


class _Shown(io.FileIO):
    """A descriptor that takes everything."""

    def write(self, data: Any, /) -> int:
        with memoryview(data) as view:
            show(view, self.fileno())
            return len(view)


def _to_nothing(fd: int) -> None:
    with contextlib.suppress(OSError):  # no descriptor to be had: then writes go on failing, which is survived
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, fd)
        os.close(nothing)
