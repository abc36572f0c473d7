"""The ports through which the queue touches the world: a Disk, a Clock, a Machine.

Every method of a Disk is one system call (or so), and one step for a simulator. Paths are relative to the
queue's folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dfq.mounts import is_local

UNKNOWN_BOOT = "unknown"  # where the kernel does not tell: then no lease is stale for being of another boot


class Facts(NamedTuple):
    """What fstat or lstat tells of a file."""

    regular: bool
    directory: bool
    links: int
    size: int
    mtime_ns: int
    mode: int = 0o664  # who may do what with it
    inode: int = 0  # which file it is, whatever its name; 0 if that is not known


class Found(NamedTuple):
    """An entry of a listing."""

    name: str
    regular: bool
    directory: bool
    mtime_ns: int


class Disk(Protocol):
    """The system calls of the queue. Errors are OSError, as the kernel words them."""

    #: True if only this machine writes to it, so that its locks and boot ids mean something.
    local: bool

    def create(self, path: str) -> int:
        """Create a file that must not exist, open for reading and writing."""

    def open(self, path: str, *, write: bool = False) -> int:
        """Open a file, never through a symbolic link."""

    def unnamed(self, near: str = "") -> int:
        """Open a new file that has no name yet, on the filesystem of a folder."""

    def link(self, fd: int, path: str) -> None:
        """Give an unnamed file a name that must not exist."""

    def link_path(self, source: str, path: str) -> None:
        """Give a named file a second name that must not exist."""

    def write(self, fd: int, data: bytes) -> None:
        """Write at the beginning of a file, in one piece."""

    def read(self, fd: int, limit: int) -> bytes:
        """Read a file from its beginning, up to limit bytes."""

    def facts(self, fd: int) -> Facts:
        """Tell of an open file."""

    def lock(self, fd: int) -> None:
        """Take the lock on a file, waiting for readers that are trying it."""

    def try_lock(self, fd: int, *, alone: bool = False) -> bool:
        """Tell whether nobody holds the lock on a file; if so we do until it is closed, with others or alone."""

    def fsync(self, fd: int) -> None:
        """Make the content of a file durable."""

    def close(self, fd: int) -> None:
        """Close a descriptor; its lock goes with the last one."""

    def exists(self, path: str) -> bool:
        """Tell whether a name exists, whatever it is."""

    def look(self, path: str) -> Facts | None:
        """Tell of a path without following links; None if there is nothing."""

    def unlink(self, path: str) -> bool:
        """Remove a name; False if it was gone, or is a directory's."""

    def replace(self, source: str, path: str) -> None:
        """Give a file the name of another, which loses it. Only for what nobody decides by."""

    def fsync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def sync_all(self) -> None:
        """Make everything durable that was written so far."""

    def mkdir(self, path: str) -> bool:
        """Make a directory; False if it was there."""

    def rmdir(self, path: str) -> bool:
        """Remove a directory; False if it is not empty or was gone."""

    def scan(self, path: str, *, times: bool = False) -> list[Found]:
        """List a directory; nothing if it is not there. mtime_ns is 0 unless asked for."""

    def touch(self, path: str) -> None:
        """Set the time of a directory to now, so that those who watch it look again."""

    def free_bytes(self) -> int:
        """Return how much can still be written."""


class Clock(Protocol):
    """Two clocks: one for people, one for measuring."""

    def wall(self) -> float:
        """Return the time of day. It may jump."""

    def elapsed(self) -> float:
        """Return the seconds since the machine was started, sleep included. It never jumps."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Who we are, for the leases we write."""

    host: str
    boot_id: str
    pid: int
    worker_id: str

    @classmethod
    def this(cls) -> Machine:
        """Return this host, this boot and this process."""
        host = os.uname().nodename or "localhost"
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
                boot_id = f.read(64).strip()
        except OSError:
            boot_id = UNKNOWN_BOOT
        pid = os.getpid()
        return cls(host, boot_id, pid, f"{host}-{pid}-{os.urandom(3).hex()}")


class SystemClock:
    """The clocks of this machine."""

    wall = staticmethod(time.time)

    def elapsed(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


_CHUNK = 64 * 1024
_MISSING = (FileNotFoundError, NotADirectoryError)


class OsDisk:
    """A folder on a filesystem of this machine. Paths that begin with a name in `elsewhere` lie in that folder."""

    def __init__(self, folder: str, *, local: bool | None = None, elsewhere: Mapping[str, str] | None = None) -> None:
        self.folder = folder.rstrip("/")
        self._elsewhere = dict(elsewhere or {})
        self.local = is_local(folder) if local is None else local
        self._prefix = self.folder + "/"
        self._tmpfile = hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd")
        self._named: dict[int, str] = {}  # temporary names, where a file must have one

    def where(self, path: str) -> str:
        """Return the whole path."""
        if self._elsewhere:
            top, _, rest = path.partition("/")
            if top in self._elsewhere:
                return f"{self._elsewhere[top]}/{rest}" if rest else self._elsewhere[top]
        return self._prefix + path

    def create(self, path: str) -> int:
        return os.open(self.where(path), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o664)

    def open(self, path: str, *, write: bool = False) -> int:
        mode = os.O_RDWR if write else os.O_RDONLY
        return os.open(self.where(path), mode | os.O_NOFOLLOW | os.O_NONBLOCK)

    def unnamed(self, near: str = "") -> int:
        if self._tmpfile:
            try:
                return os.open(self.where(near) if near else self.folder, os.O_TMPFILE | os.O_RDWR, 0o664)
            except OSError as e:
                if e.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                    raise
                self._tmpfile = False
        name = f"{near}/" * bool(near) + f".tmp-{os.getpid()}-{os.urandom(8).hex()}"
        fd = self.create(name)
        self._named[fd] = name
        return fd

    def link(self, fd: int, path: str) -> None:
        name = self._named.get(fd)
        if name is not None:
            os.link(self.where(name), self.where(path))
        else:
            # Passing src_dir_fd makes Python call linkat() with AT_SYMLINK_FOLLOW, which this needs.
            os.link(f"/proc/self/fd/{fd}", self.where(path), src_dir_fd=fd, follow_symlinks=True)

    def link_path(self, source: str, path: str) -> None:
        os.link(self.where(source), self.where(path), follow_symlinks=False)

    def write(self, fd: int, data: bytes) -> None:
        done = os.pwrite(fd, data, 0)
        while done < len(data):
            done += os.pwrite(fd, data[done:], done)

    def read(self, fd: int, limit: int) -> bytes:
        data = os.pread(fd, min(limit, _CHUNK), 0)
        while data and len(data) < limit:  # most files are one chunk, and then one more look tells that this was all
            more = os.pread(fd, min(limit - len(data), 16 * _CHUNK), len(data))
            if not more:
                break
            data += more
        return data

    def facts(self, fd: int) -> Facts:
        return _facts(os.fstat(fd))

    def lock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def try_lock(self, fd: int, *, alone: bool = False) -> bool:
        try:
            fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        name = self._named.pop(fd, None)
        os.close(fd)
        if name is not None:
            self.unlink(name)

    def exists(self, path: str) -> bool:
        try:
            os.lstat(self.where(path))
        except _MISSING:
            return False
        return True

    def look(self, path: str) -> Facts | None:
        try:
            return _facts(os.lstat(self.where(path)))
        except _MISSING:
            return None

    def unlink(self, path: str) -> bool:
        try:
            os.unlink(self.where(path))
        except (*_MISSING, IsADirectoryError):  # a folder in the place of a file is none of ours: it stays
            return False
        return True

    def replace(self, source: str, path: str) -> None:
        os.replace(self.where(source), self.where(path))

    def fsync_dir(self, path: str) -> None:
        fd = os.open(self.where(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), self.folder)
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> bool:
        try:
            os.mkdir(self.where(path), 0o775)
        except FileExistsError:
            return False
        return True

    def rmdir(self, path: str) -> bool:
        try:
            os.rmdir(self.where(path))
        except OSError as e:
            if e.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                return False
            raise
        return True

    def scan(self, path: str, *, times: bool = False) -> list[Found]:
        found = []
        try:
            fd = os.open(self.where(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except _MISSING:
            return []
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link in place of a folder: what is behind it is not ours
                return []
            raise
        try:
            with os.scandir(fd) as entries:
                for e in entries:
                    mtime = 0
                    if times:
                        with contextlib.suppress(FileNotFoundError):
                            mtime = e.stat(follow_symlinks=False).st_mtime_ns
                    regular = e.is_file(follow_symlinks=False)
                    directory = not regular and e.is_dir(follow_symlinks=False)
                    found.append(Found(e.name, regular, directory, mtime))
        finally:
            os.close(fd)
        return found

    def touch(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.where(path))

    def free_bytes(self) -> int:
        v = os.statvfs(self.folder)
        return v.f_bavail * v.f_frsize if v.f_favail or not v.f_files else 0


def _facts(s: os.stat_result) -> Facts:
    mode, kind = stat.S_IMODE(s.st_mode), stat.S_IFMT(s.st_mode)
    return Facts(kind == stat.S_IFREG, kind == stat.S_IFDIR, s.st_nlink, s.st_size, s.st_mtime_ns, mode, s.st_ino)
