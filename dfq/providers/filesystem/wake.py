"""Sleeping until a file event says that looking again is worth it (inotify, ADR 015).

Events are hints: they may be lost, doubled or not exist at all. Whoever sleeps here looks for itself after
each wake-up, and at the latest when the time it gave is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
from collections.abc import Iterable

CLOSE_WRITE, ATTRIB, MOVED_TO, CREATE, DELETE = 0x8, 0x4, 0x80, 0x100, 0x200
_OVERFLOW, _IGNORED, _ONLYDIR, _DONT_FOLLOW = 0x4000, 0x8000, 0x01000000, 0x02000000
_HEADER = struct.Struct("iIII")
MAX_WATCHES = 3000  # of the 8,192 or so that a small machine grants to all processes together


class Events:
    """File events from some directories, and a bell that another thread can ring."""

    def __init__(self) -> None:
        self._fd = -1
        self._libc: ctypes.CDLL | None = None
        self._folders: dict[int, str] = {}
        self._watched: set[str] = set()
        self._full = False
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None, use_errno=True)
            fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if fd >= 0:  # no free instance: polling has to do
                self._fd, self._libc = fd, libc

    @property
    def complete(self) -> bool:
        """True while every directory that was asked for is watched, so that one may sleep long."""
        return self._fd >= 0 and not self._full

    def watch(self, folders: Iterable[tuple[str, str, int]]) -> bool:
        """Watch (key, path, mask) directories that are not watched yet; True if there were any."""
        new = False
        if self._libc is None:
            return False
        for key, path, mask in folders:
            if key in self._watched:
                continue
            if len(self._watched) >= MAX_WATCHES:
                self._full = True
                break
            flags = mask | _ONLYDIR | _DONT_FOLLOW
            wd = self._libc.inotify_add_watch(self._fd, os.fsencode(path), ctypes.c_uint32(flags))
            if wd >= 0:
                self._folders[wd] = key
                self._watched.add(key)
                new = True
            elif ctypes.get_errno() != 2:  # anything but "no such directory": out of watches
                self._full = True
        return new

    def wait(self, seconds: float) -> list[tuple[str, str]] | None:
        """Sleep until an event, the bell or the time; return (key, file name) pairs, None if any was lost."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        if self._fd >= 0:
            poller.register(self._fd, select.POLLIN)
        poller.poll(max(0, int(seconds * 1000 + 0.999)))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        return self._read()

    def ring(self) -> None:
        """Wake the one who waits; callable from any thread and from a signal handler."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Free the descriptors."""
        for fd in (self._fd, self._bell):
            if fd >= 0:
                os.close(fd)
        self._fd = self._bell = -1
        self._libc = None

    def _read(self) -> list[tuple[str, str]] | None:
        if self._fd < 0:
            return []
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return []
        events, at, lost = [], 0, False
        while at < len(data):
            wd, mask, _, size = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            name = os.fsdecode(data[at : at + size].rstrip(b"\0"))
            at += size
            if mask & _OVERFLOW:
                lost = True
            elif mask & _IGNORED:
                self._watched.discard(self._folders.pop(wd, ""))
            elif wd in self._folders:
                events.append((self._folders[wd], name))
        return None if lost else events
