"""How the checks see this machine: its files, its commands, its kernel. A test gives them another one."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import subprocess
import time
from typing import NamedTuple

import psutil

TIME_OUT = 5.0  # seconds for a command
MAX_OUTPUT = 64 * 1024  # bytes of what a command prints
MAX_FILE = 1024 * 1024  # the table of mounts may be long
_TIME_ERROR, _STA_UNSYNC = 5, 0x40


class Space(NamedTuple):
    """Room on a filesystem, for us; files is 0 where they are not counted."""

    total: int
    free: int
    files: int
    free_files: int


class Memory(NamedTuple):
    """Bytes of memory and swap."""

    total: int
    available: int
    swap: int
    swap_used: int


class _Timex(ctypes.Structure):
    # The beginning of struct timex; the rest is room for what the kernel writes.
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


class Probe:
    """This machine. What cannot be told is None or empty; an OSError is for what should have worked."""

    def read(self, path: str) -> str | None:
        """Return the beginning of a small file."""
        try:
            with open(path, "rb") as f:
                return f.read(MAX_FILE).decode(errors="surrogateescape")
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """Return what is in a folder."""
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def run(self, *argv: str) -> str | None:
        """Return what a command prints; None if there is none, it fails, or it takes or prints too much."""
        program = shutil.which(argv[0])
        if program is None:
            return None
        env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        quiet = subprocess.DEVNULL
        try:
            process = subprocess.Popen(
                [program, *argv[1:]], stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, env=env, close_fds=True
            )
        except OSError:
            return None
        with process:
            try:
                output = _read_all(process)
                return output if output is not None and process.wait(TIME_OUT) == 0 else None
            except subprocess.TimeoutExpired:
                return None
            finally:
                process.kill()

    def kernel_clock(self) -> tuple[bool, float] | None:
        """Return whether the kernel takes its clock for right, and by how many seconds it may be wrong."""
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            timex = _Timex(modes=0)
            state = libc.adjtimex(ctypes.byref(timex))
        except (OSError, AttributeError):
            return None
        if state < 0:
            return None
        return state != _TIME_ERROR and not timex.status & _STA_UNSYNC, timex.maxerror / 1e6

    def wall(self) -> float:
        return time.time()

    def boottime(self) -> float | None:
        """Return the seconds since the start, sleep included."""
        try:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        except (OSError, AttributeError):
            return None

    def programs(self) -> set[str]:
        """Return the names of what is running."""
        return {str(process.info["name"]) for process in psutil.process_iter(["name"])}

    def space(self, path: str) -> Space:
        v = os.statvfs(path)
        return Space(v.f_blocks * v.f_frsize, v.f_bavail * v.f_frsize, v.f_files, v.f_favail)

    def memory(self) -> Memory:
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return Memory(memory.total, memory.available, swap.total, swap.used)

    def sensors(self) -> dict[str, float]:
        """Return temperatures in °C, by the name of the sensor."""
        return {name: max(s.current for s in found) for name, found in psutil.sensors_temperatures().items() if found}

    def limit(self, kind: int) -> tuple[int | None, int | None]:
        """Return the soft and the hard limit of a resource; None is no limit."""
        soft, hard = (None if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(kind))
        return soft, hard

    def host(self) -> str:
        return os.uname().nodename

    def kernel(self) -> tuple[str, str]:
        """Return the kernel's release and the machine's architecture."""
        return os.uname().release, os.uname().machine


def _read_all(process: subprocess.Popen[bytes]) -> str | None:
    assert process.stdout is not None
    deadline = time.monotonic() + TIME_OUT
    data = b""
    while len(data) <= MAX_OUTPUT:
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            return data.decode(errors="replace")
        data += chunk
    return None
