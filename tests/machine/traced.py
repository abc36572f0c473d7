"""A child process that runs under our hand from one system call to the next (ptrace).

Only its main thread is traced, so that the calls come in the same order each time; a kill ends all of it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long
_SYSCALL, _POKEUSER, _SEIZE, _INTERRUPT, _CALL_INFO = 24, 6, 0x4206, 0x4207, 0x420E
_TRACESYSGOOD, _EXITKILL = 0x1, 0x100000
_WALL = 0x40000000
_ENTRY, _EXIT = 1, 2
_RAX, _ORIG_RAX = 8 * 10, 8 * 15  # where x86-64 keeps the answer and the number of a call

_TABLES = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 8: "lseek", 9: "mmap",
        10: "mprotect", 11: "munmap", 12: "brk", 13: "rt_sigaction", 14: "rt_sigprocmask", 16: "ioctl", 17: "pread64",
        18: "pwrite64", 39: "getpid", 56: "clone", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
        82: "rename", 83: "mkdir", 84: "rmdir", 86: "link", 87: "unlink", 89: "readlink", 137: "statfs",
        186: "gettid", 202: "futex", 217: "getdents64", 228: "clock_gettime", 230: "clock_nanosleep",
        231: "exit_group", 254: "inotify_add_watch", 257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat",
        264: "renameat", 265: "linkat", 280: "utimensat", 290: "eventfd2", 294: "inotify_init1", 302: "prlimit64",
        306: "syncfs", 318: "getrandom", 332: "statx", 435: "clone3",
    },
    "aarch64": {
        34: "mkdirat", 35: "unlinkat", 37: "linkat", 44: "fstatfs", 32: "flock", 46: "ftruncate", 56: "openat",
        57: "close", 61: "getdents64", 63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 79: "newfstatat",
        80: "fstat", 82: "fsync", 83: "fdatasync", 88: "utimensat", 94: "exit_group", 98: "futex", 215: "munmap",
        222: "mmap", 261: "prlimit64", 267: "syncfs", 276: "renameat2", 278: "getrandom", 291: "statx",
    },
}  # fmt: skip
NAMES = _TABLES.get(platform.machine(), {})
#: Errors can be put in place of a call here.
CAN_REFUSE = platform.machine() == "x86_64"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: The calls that reach the filesystem.
ON_FILES = _words(
    """open openat close stat fstat lstat newfstatat statx pread64 pwrite64 read write flock fsync fdatasync rename
    renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat getdents64 utimensat syncfs statfs"""
)
#: Those of them that want room on the device.
WANT_ROOM = _words("open openat pwrite64 write fsync fdatasync mkdir mkdirat link linkat utimensat syncfs")
#: Those after which everything is as it was before.
_LOOKING = _words(
    """stat fstat lstat newfstatat statx pread64 read lseek fcntl getdents64 mmap munmap mprotect brk futex getrandom
    prlimit64 gettid getpid rt_sigaction rt_sigprocmask ioctl clock_gettime statfs readlink close"""
)


class _Info(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 6),
        ("more", ctypes.c_uint64 * 2),
    )


class CannotTrace(Exception):
    """This machine does not let us."""


def _ptrace(request: int, pid: int, address: int = 0, data: int = 0) -> int:
    ctypes.set_errno(0)
    answer: int = _libc.ptrace(request, pid, address, data)
    if answer < 0 and ctypes.get_errno():
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace({request:#x}): {os.strerror(code)}")
    return answer


@dataclass(frozen=True)
class Call:
    """A system call that is about to be made."""

    number: int
    args: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return NAMES.get(self.number, f"call-{self.number}")

    @property
    def changes(self) -> bool:
        """True if the disk, or who holds which lock, may be another after it."""
        if self.name in ("open", "openat"):
            return bool(self.args[(self.name == "openat" and 2) or 1] & (os.O_CREAT | os.O_TMPFILE & ~os.O_DIRECTORY))
        return self.name not in _LOOKING


_PREPARING, _ACTING, _RETURNED, _RAISED = 0, 1, 2, 3


class Traced:
    """A forked child: `prepare` runs freely, then `act` with what it gave, call by call."""

    def __init__(self, prepare: Callable[[], Callable[[], None]]) -> None:
        self._state = mmap.mmap(-1, mmap.PAGESIZE)  # shared with the child: what it is doing, told without a call
        ready_r, ready_w = os.pipe()
        go_r, go_w = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(ready_r)
            os.close(go_w)
            self._child(prepare, ready_w, go_r)
        os.close(ready_w)
        os.close(go_r)
        self.dead = False
        self._inside = False
        try:
            if os.read(ready_r, 1) != b"r":
                raise AssertionError("the scene could not be set: see above")
            try:
                _ptrace(_SEIZE, self.pid, 0, _TRACESYSGOOD | _EXITKILL)
            except PermissionError as e:
                raise CannotTrace(f"processes may not be traced here: {e}") from e
            _ptrace(_INTERRUPT, self.pid)
            self._wait()
            os.write(go_w, b"g")
        except BaseException:
            self.kill()
            raise
        finally:
            os.close(ready_r)
            os.close(go_w)

    def _child(self, prepare: Callable[[], Callable[[], None]], ready: int, go: int) -> NoReturn:
        state = self._state
        try:
            act = prepare()
            os.write(ready, b"r")
            os.read(go, 1)
            state[0] = _ACTING
            act()
            state[0] = _RETURNED
        except BaseException:  # noqa: BLE001 - whatever it was, a child must not return into its parent's code
            traceback.print_exc()
            sys.stderr.flush()
            state[0] = _RAISED  # now: whoever traces us ends us at our next call
        finally:
            os._exit(0)

    @property
    def returned(self) -> bool:
        """True once `act` has returned."""
        return self._state[0] == _RETURNED

    @property
    def raised(self) -> bool:
        return self._state[0] == _RAISED

    def next(self) -> Call | None:
        """Go on to the next call of `act`, which is not made yet; None when there is none any more."""
        while not self.dead:
            info = self._step()
            if info is None or self._state[0] >= _RETURNED:
                return None
            if info.op == _ENTRY and self._state[0] == _ACTING:
                return Call(info.number, tuple(info.args))
        return None

    def refuse(self, call: Call, code: int) -> None:
        """Let the call that is about to be made fail. (A file is closed all the same, as the kernel does it.)"""
        if call.name != "close":
            _ptrace(_POKEUSER, self.pid, _ORIG_RAX, -1 & (2**64 - 1))
        info = self._step()
        if info is None or info.op != _EXIT:
            raise AssertionError(f"no answer to {call.name} to be changed: {info and info.op}")
        _ptrace(_POKEUSER, self.pid, _RAX, -code & (2**64 - 1))

    def finish(self) -> None:
        """Let it go on to its end, untouched."""
        while self.next() is not None:
            pass

    def kill(self) -> None:
        """Kill it as it is: a call that was about to be made is not made."""
        if not self.dead:
            os.kill(self.pid, signal.SIGKILL)
            while not self.dead:
                self._wait()
        self._state.close()

    def _step(self) -> _Info | None:
        """Go on to the next stop at a call; None if the process ended."""
        deliver = 0
        while True:
            try:
                _ptrace(_SYSCALL, self.pid, 0, deliver)
            except OSError as e:
                if e.errno != errno.ESRCH:
                    raise
            stopped = self._wait()
            if stopped is None:
                return None
            if stopped == signal.SIGTRAP | 0x80:
                info = _Info()
                _ptrace(_CALL_INFO, self.pid, ctypes.sizeof(info), ctypes.addressof(info))
                return info
            deliver = 0 if stopped == signal.SIGTRAP else stopped

    def _wait(self) -> int | None:
        """Return the signal that it stopped with; None if it is dead."""
        _, status = os.waitpid(self.pid, _WALL)
        if os.WIFSTOPPED(status):
            return os.WSTOPSIG(status)
        self.dead = True
        return None
