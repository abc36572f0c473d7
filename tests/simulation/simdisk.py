"""A disk in memory that many simulated processes share, and that can lose its power.

`Platter` is the device: names, files, and what of them would survive a power cut. `SimDisk` is one process's view
of it and implements `dfq.ports.Disk`; every call first asks its `Step` for leave, which is where a scheduler
switches processes, and where a dead process stays dead.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dfq.ports import Facts, Found

Step = Callable[[str, str], None]


class Crashed(BaseException):
    """Raised in a process that was killed; it must not be caught by the code under test."""


@dataclass(eq=False, slots=True)
class Inode:
    """A file or a directory. `versions` are the contents it may have after a power cut, the durable one first."""

    id: str
    directory: bool = False
    data: bytes = b""
    links: int = 0
    versions: list[bytes] = field(default_factory=lambda: [b""])
    locks: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class OpenFile:
    inode: Inode
    owner: str
    writable: bool


class Platter:
    """The device. `names` is what processes see; `changes` is what each name may be after a power cut."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {".": Inode("root", directory=True, links=1)}
        self.changes: dict[str, list[Inode | None]] = {}  # since the last fsync of the directory, durable one first
        self.open: dict[int, OpenFile] = {}
        self.counters: dict[str, int] = {}
        self.watchers: list[Callable[[str, str, str, Inode], None]] = []  # (process, what, path, file)

    def count(self, what: str) -> int:
        self.counters[what] = self.counters.get(what, 0) + 1
        return self.counters[what]

    def set(self, path: str, inode: Inode | None) -> None:
        """Change what a name stands for; durable once its directory is synced."""
        old = self.names.pop(path, None)
        if old is not None:
            old.links -= 1
        if inode is not None:
            self.names[path] = inode
            inode.links += 1
        self.changes.setdefault(path, [old]).append(inode)

    def settle(self, directory: str) -> None:
        """Make the names in a directory durable."""
        for path in [p for p in self.changes if _parent(p) == directory]:
            del self.changes[path]

    def kill(self, process: str) -> None:
        """Close what a process has open, and drop its locks."""
        for fd in [fd for fd, file in self.open.items() if file.owner == process]:
            self.open.pop(fd).inode.locks.pop(fd, None)

    def children(self, directory: str) -> list[str]:
        return [p for p in self.names if p != "." and _parent(p) == directory]

    def key(self) -> int:
        """Return a digest of all that processes can see."""
        return hash(frozenset([(path, i.id, i.data) for path, i in self.names.items()]))

    def copy(self) -> Platter:
        """Return the same disk at rest: all of it durable, nothing open."""
        twin = Platter()
        copies: dict[Inode, Inode] = {}
        for path, inode in self.names.items():
            if inode not in copies:
                copies[inode] = Inode(inode.id, inode.directory, inode.data, versions=[inode.data])
            twin.names[path] = copies[inode]
            copies[inode].links += 1
        return twin

    def power_cut(self, rng: random.Random) -> Platter:
        """Return a disk as it may be after the power went now: any subset of what was not synced."""
        taste = rng.choice(("any", "any", "removals", "names", "none"))
        after = Platter()
        copies: dict[Inode, Inode] = {}
        for path in sorted({*self.names, *self.changes}, key=lambda p: (p != ".", p.count("/"), p)):
            inode = self.names.get(path)
            if path in self.changes:
                inode = _survivor(self.changes[path], taste, rng)
            above = after.names.get(_parent(path))
            if path == "." or inode is None or above is None or not above.directory:
                continue
            if inode not in copies:
                data = _content(inode, taste, rng)
                copies[inode] = Inode(inode.id, inode.directory, data, versions=[data])
            after.set(path, copies[inode])
        after.changes.clear()
        after.counters = dict(self.counters)
        return after


def _survivor(values: list[Inode | None], taste: str, rng: random.Random) -> Inode | None:
    if taste == "none":
        return values[0]
    if taste == "names":
        return values[-1]
    if taste == "removals":  # what went is gone for good, what came was not written yet
        return None if values[-1] is None else values[0]
    return rng.choice(values)


def _content(inode: Inode, taste: str, rng: random.Random) -> bytes:
    if len(inode.versions) == 1:
        return inode.versions[0]
    if taste == "names":
        return inode.versions[0]
    new, old = rng.choice(inode.versions), rng.choice(inode.versions)
    cut = rng.choice((0, rng.randint(0, len(new)), len(new)))
    return new[:cut] + old[cut:] if old else new[:cut]


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _oserror(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class SimDisk:
    """One process's view of a platter."""

    local = True

    def __init__(self, platter: Platter, process: str, step: Step, seen: Callable[[Any], None]) -> None:
        self._platter = platter
        self._process = process
        self._step = step
        self._seen = seen  # told the outcome of each call: all that a process can learn

    def create(self, path: str) -> int:
        self._step("create", path)
        return self._told(self._open(self._name(path, self._new(), "create"), writable=True))

    def open(self, path: str, *, write: bool = False) -> int:
        self._step("open", path)
        inode = self._platter.names.get(path)
        if inode is None:
            raise self._failed(errno.ENOENT, path)
        if inode.directory and write:
            raise self._failed(errno.EISDIR, path)
        return self._told(self._open(inode, writable=write))

    def unnamed(self, near: str = "") -> int:
        self._step("unnamed", "")
        return self._told(self._open(self._new(), writable=True))

    def link(self, fd: int, path: str) -> None:
        self._step("link", path)
        self._name(path, self._file(fd).inode, "link")
        self._told(True)

    def link_path(self, source: str, path: str) -> None:
        self._step("link_path", f"{source} {path}")
        inode = self._platter.names.get(source)
        if inode is None:
            raise self._failed(errno.ENOENT, source)
        self._name(path, inode, "link")
        self._told(True)

    def write(self, fd: int, data: bytes) -> None:
        self._step("write" if self._file(fd).inode.links else "prepare", self._named(fd))
        file = self._file(fd)
        if not file.writable:
            raise self._failed(errno.EBADF, self._named(fd))
        file.inode.data = data + file.inode.data[len(data) :]
        file.inode.versions.append(file.inode.data)
        self._tell("write", self._named(fd), file.inode)
        self._told(True)

    def read(self, fd: int, limit: int) -> bytes:
        self._step("read", self._named(fd))
        return self._told(self._file(fd).inode.data[:limit])

    def facts(self, fd: int) -> Facts:
        self._step("facts" if self._file(fd).writable else "kind", self._named(fd))
        return self._told(_facts(self._file(fd).inode))

    def lock(self, fd: int) -> None:
        self._step("lock", self._named(fd))
        inode = self._file(fd).inode
        while set(inode.locks) - {fd}:
            self._step("wait", self._named(fd))
        inode.locks[fd] = "exclusive"

    def try_lock(self, fd: int) -> bool:
        self._step("try_lock", self._named(fd))
        inode = self._file(fd).inode
        if any(kind == "exclusive" for holder, kind in inode.locks.items() if holder != fd):
            return self._told(False)
        inode.locks[fd] = "shared"
        return self._told(True)

    def fsync(self, fd: int) -> None:
        self._step("fsync", self._named(fd))
        inode = self._file(fd).inode
        inode.versions = [inode.data]

    def close(self, fd: int) -> None:
        if fd not in self._platter.open:
            return  # its process is dead, and only its memory is being cleared
        self._step("close", self._named(fd))
        self._platter.open.pop(fd).inode.locks.pop(fd, None)

    def exists(self, path: str) -> bool:
        self._step("exists", path)
        return self._told(path in self._platter.names)

    def look(self, path: str) -> Facts | None:
        self._step("look", path)
        inode = self._platter.names.get(path)
        return self._told(None if inode is None else _facts(inode))

    def unlink(self, path: str) -> bool:
        self._step("unlink", path)
        inode = self._platter.names.get(path)
        if inode is None:
            return self._told(False)
        if inode.directory:
            raise self._failed(errno.EISDIR, path)
        self._platter.set(path, None)
        self._tell("unlink", path, inode)
        return self._told(True)

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)
        if path not in self._platter.names:
            raise self._failed(errno.ENOENT, path)
        self._platter.settle(path)

    def sync_all(self) -> None:
        self._step("sync_all", "")
        self._platter.changes.clear()
        files = [*self._platter.names.values(), *(file.inode for file in self._platter.open.values())]
        for inode in files:
            inode.versions = [inode.data]

    def mkdir(self, path: str) -> bool:
        self._step("mkdir", path)
        if path in self._platter.names:
            return self._told(False)
        self._need_folder(path)
        self._platter.set(path, Inode(f"dir:{path}", directory=True))
        return self._told(True)

    def rmdir(self, path: str) -> bool:
        self._step("rmdir", path)
        if path not in self._platter.names or self._platter.children(path):
            return self._told(False)
        self._platter.set(path, None)
        return self._told(True)

    def scan(self, path: str, *, times: bool = False) -> list[Found]:
        self._step("scan", path)
        found = []
        for child in sorted(self._platter.children(path)):
            directory = self._platter.names[child].directory
            found.append(Found(child.rpartition("/")[2], not directory, directory, 0))
        self._told(tuple(found))
        return found

    def touch(self, path: str) -> None:
        self._step("touch", path)

    def free_bytes(self) -> int:
        return 1 << 40

    # -- inside ------------------------------------------------------------------------------------

    def _new(self) -> Inode:
        return Inode(f"{self._process}#{self._platter.count(self._process + ' files')}")

    def _open(self, inode: Inode, *, writable: bool) -> int:
        # Numbers are a process's own, so that a run does not depend on what others opened before.
        fd = 10_000 * (1 + sum(map(ord, self._process)) % 100) + self._platter.count(self._process + " opens")
        self._platter.open[fd] = OpenFile(inode, self._process, writable)
        return fd

    def _file(self, fd: int) -> OpenFile:
        file = self._platter.open.get(fd)
        if file is None or file.owner != self._process:
            raise _oserror(errno.EBADF, str(fd))
        return file

    def _named(self, fd: int) -> str:
        inode = self._file(fd).inode
        return next((path for path, i in self._platter.names.items() if i is inode), inode.id)

    def _need_folder(self, path: str) -> None:
        above = self._platter.names.get(_parent(path))
        if above is None:
            raise self._failed(errno.ENOENT, path)
        if not above.directory:
            raise self._failed(errno.ENOTDIR, path)

    def _name(self, path: str, inode: Inode, what: str) -> Inode:
        self._need_folder(path)
        if path in self._platter.names:
            raise self._failed(errno.EEXIST, path)
        self._platter.set(path, inode)
        self._tell(what, path, inode)
        return inode

    def _tell(self, what: str, path: str, inode: Inode) -> None:
        for watcher in self._platter.watchers:
            watcher(self._process, what, path, inode)

    def _told(self, outcome: Any) -> Any:
        self._seen(outcome)
        return outcome

    def _failed(self, code: int, path: str) -> OSError:
        self._seen(errno.errorcode[code])
        return _oserror(code, path)


def _facts(inode: Inode) -> Facts:
    return Facts(not inode.directory, inode.directory, inode.links, len(inode.data), 0)


class SimClock:
    """Elapsed time moves on when told to; the wall clock may jump to anywhere."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._wall = 1_800_000_000.0

    def wall(self) -> float:
        return self._wall

    def elapsed(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._wall += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as NTP does on a machine without a clock of its own."""
        self._wall += seconds
