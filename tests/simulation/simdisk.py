"""A disk in memory that many simulated processes share, that can fail at any call, and that can lose its power.

`Platter` is the device: names, files, and what of them would survive a power cut. `SimDisk` is one process's view
of it and implements `dfq.ports.Disk`; every call first asks its `Actor` for leave, which is where a scheduler
switches processes, where a dead process stays dead, and where a call may be made to fail.
"""

from __future__ import annotations

import errno
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dfq.ports import Facts, Found

#: Changes of a directory that a listing which lags may miss.
RECENT = 4


class Crashed(BaseException):
    """Raised in a process that was killed; it must not be caught by the code under test."""


class Actor(Protocol):
    """The process on whose behalf a call is made."""

    name: str

    def step(self, what: str, where: str | int) -> None:
        """Wait for leave to make a call. Raises Crashed, or OSError if the call is to fail before it did anything."""

    def told(self, outcome: Any) -> None:
        """Learn what came of the call. Raises OSError if the reply is to be lost."""

    def lag(self) -> int:
        """Return how many of the last changes a listing is to miss."""


@dataclass(eq=False, slots=True)
class Inode:
    """A file or a directory. `versions` are the contents it may have after a power cut, the durable one first."""

    id: str
    directory: bool = False
    data: bytes = b""
    links: int = 0
    versions: list[bytes] = field(default_factory=lambda: [b""])
    locks: dict[int, str] = field(default_factory=dict)
    mtime: float = 0.0  # by the wall clock
    written: float = 0.0  # by the clock that never jumps
    number: int = 0  # which file it is, in what is told of it
    spoilt: bool = False  # a sync of it failed: the kernel has forgotten that there is something to write

    def __post_init__(self) -> None:
        self.number = self.number or zlib.crc32(self.id.encode())


@dataclass(slots=True)
class OpenFile:
    inode: Inode
    owner: str
    writable: bool


class SimClock:
    """Elapsed time moves on when told to; the wall clock may jump to anywhere."""

    def __init__(self, now: float = 1_000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = now
        self._wall = wall

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

    def copy(self) -> SimClock:
        return SimClock(self._now, self._wall)


class Platter:
    """The device. `names` is what processes see; `changes` is what each name may be after a power cut."""

    def __init__(self, clock: SimClock) -> None:
        self.clock = clock
        self.names: dict[str, Inode] = {".": Inode("root", directory=True, links=1)}
        self.changes: dict[str, list[Inode | None]] = {}  # since the last fsync of the directory, durable one first
        self.open: dict[int, OpenFile] = {}
        self.counters: dict[str, int] = {}
        self.recent: dict[str, list[tuple[str, Inode | None]]] = {}  # directory -> last changes: what a name was before
        self.watcher: Callable[[str, str, str, Inode], None] = lambda *_: None  # (process, what, path, file)

    def count(self, what: str) -> int:
        number = self.counters.get(what, 0) + 1
        self.counters[what] = number
        return number

    def set(self, path: str, inode: Inode | None) -> None:
        """Change what a name stands for; durable once its directory is synced."""
        old = self.names.pop(path, None)
        if old is not None:
            old.links -= 1
        if inode is not None:
            self.names[path] = inode
            inode.links += 1
        self.changes.setdefault(path, [old]).append(inode)
        directory = parent(path)
        recent = self.recent.setdefault(directory, [])
        recent.append((path, old))
        if len(recent) > RECENT:
            del recent[0]
        above = self.names.get(directory)
        if above is not None:
            above.mtime = self.clock.wall()

    def settle(self, directory: str) -> None:
        """Make the names in a directory durable."""
        for path in [p for p in self.changes if parent(p) == directory]:
            del self.changes[path]

    def kill(self, process: str) -> None:
        """Close what a process has open, and drop its locks."""
        for fd in [fd for fd, file in self.open.items() if file.owner == process]:
            self.open.pop(fd).inode.locks.pop(fd, None)

    def listing(self, directory: str, lag: int) -> dict[str, Inode]:
        """Return what is in a directory, or was `lag` changes ago."""
        start = 0 if directory == "." else len(directory) + 1
        found = {
            path: inode
            for path, inode in self.names.items()
            if path.rfind("/") + 1 == start and path != "." and path.startswith(directory if start else "")
        }
        for path, before in reversed(self.recent.get(directory, [])[-lag:] if lag else []):
            if before is None:
                found.pop(path, None)
            else:
                found[path] = before
        return found

    def key(self) -> int:
        """Return a digest of all that processes can see."""
        return hash(frozenset([(path, i.id, i.data, i.mtime) for path, i in self.names.items()]))

    def copy(self) -> Platter:
        """Return the same disk at rest: all of it durable, nothing open."""
        twin = Platter(self.clock.copy())
        copies: dict[Inode, Inode] = {}
        for path, inode in self.names.items():
            copy = copies.get(inode)
            if copy is None:
                copy = copies[inode] = _twin(inode, inode.data)
            twin.names[path] = copy
            copy.links += 1
        return twin

    def power_cut(self, rng: random.Random) -> Platter:
        """Return a disk as it may be after the power went now: any subset of what was not synced."""
        taste = rng.choice(("any", "any", "removals", "names", "none"))
        after = Platter(self.clock.copy())
        copies: dict[Inode, Inode] = {}
        for path in sorted({*self.names, *self.changes}, key=lambda p: (p != ".", p.count("/"), p)):
            inode = self.names.get(path)
            if path in self.changes:
                inode = _survivor(self.changes[path], taste, rng)
            above = after.names.get(parent(path))
            if path == "." or inode is None or above is None or not above.directory:
                continue
            if inode not in copies:
                copies[inode] = _twin(inode, _content(inode, taste, rng))
            after.names[path] = copies[inode]
            copies[inode].links += 1
        after.counters = dict(self.counters)
        return after


def _twin(inode: Inode, data: bytes) -> Inode:
    return Inode(inode.id, inode.directory, data, 0, [data], {}, inode.mtime, inode.written, inode.number)


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


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "."


def oserror(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


class SimDisk:
    """One process's view of a platter."""

    def __init__(self, platter: Platter, actor: Actor, *, local: bool = True) -> None:
        self.local = local
        self._platter = platter
        self._names = platter.names
        self._actor = actor
        self._step = actor.step
        self._told = actor.told
        self._process = actor.name
        # Numbers are a process's own, so that a run does not depend on what others opened before.
        self._first_fd = 10_000 * (1 + sum(map(ord, actor.name)) % 100)

    def create(self, path: str) -> int:
        self._step("create", path)
        inode = self._name(path, self._new(), "create")
        self._told(True)  # a lost reply leaves the name, and no descriptor
        return self._open(inode, writable=True)

    def open(self, path: str, *, write: bool = False) -> int:
        self._step("open", path)
        inode = self._names.get(path)
        if inode is None:
            raise self._failed(errno.ENOENT, path)
        if inode.directory and write:
            raise self._failed(errno.EISDIR, path)
        fd = self._open(inode, writable=write)
        self._told(fd)
        return fd

    def unnamed(self, near: str = "") -> int:
        self._step("unnamed", "")
        fd = self._open(self._new(), writable=True)
        self._told(fd)
        return fd

    def link(self, fd: int, path: str) -> None:
        self._step("link", path)
        self._name(path, self._file(fd).inode, "link")
        self._told(True)

    def link_path(self, source: str, path: str) -> None:
        self._step("link_path", f"{source} {path}")
        inode = self._names.get(source)
        if inode is None:
            raise self._failed(errno.ENOENT, source)
        self._name(path, inode, "link")
        self._told(True)

    def write(self, fd: int, data: bytes) -> None:
        self._step("write" if self._file(fd).inode.links else "prepare", fd)
        file = self._file(fd)
        if not file.writable:
            raise self._failed(errno.EBADF, str(fd))
        inode = file.inode
        inode.data = data + inode.data[len(data) :]
        inode.versions.append(inode.data)
        inode.mtime, inode.written, inode.spoilt = self._platter.clock.wall(), self._platter.clock.elapsed(), False
        if inode.links:
            self._platter.watcher(self._process, "write", self.named(fd), inode)
        self._told(True)

    def read(self, fd: int, limit: int) -> bytes:
        self._step("read", fd)
        data = self._file(fd).inode.data[:limit]
        self._told(data)
        return data

    def facts(self, fd: int) -> Facts:
        self._step("facts" if self._file(fd).writable else "kind", fd)
        facts = _facts(self._file(fd).inode)
        self._told(facts)
        return facts

    def lock(self, fd: int) -> None:
        self._step("lock", fd)
        inode = self._file(fd).inode
        while set(inode.locks) - {fd}:
            self._step("wait", fd)
        inode.locks[fd] = "exclusive"

    def try_lock(self, fd: int, *, alone: bool = False) -> bool:
        self._step("try_lock", fd)
        inode = self._file(fd).inode
        # On a disk that is shared with other machines, each process here stands for a machine of its own: what it
        # sees of the locks of others is only what it holds on to for a moment.
        seen = inode.locks if self.local or alone else {}
        free = not any(alone or kind == "exclusive" for holder, kind in seen.items() if holder != fd)
        if free:
            inode.locks[fd] = "exclusive" if alone else "shared"
        self._told(free)
        return free

    def fsync(self, fd: int) -> None:
        try:
            self._step("fsync", fd)
        except OSError:
            self._file(fd).inode.spoilt = True  # and the next sync finds nothing to do
            raise
        inode = self._file(fd).inode
        if not inode.spoilt:
            inode.versions = [inode.data]

    def close(self, fd: int) -> None:
        if fd not in self._platter.open:
            return  # its process is dead, and only its memory is being cleared
        self._step("close", fd)
        self._platter.open.pop(fd).inode.locks.pop(fd, None)

    def exists(self, path: str) -> bool:
        self._step("exists", path)
        found = path in self._names
        self._told(found)
        return found

    def look(self, path: str) -> Facts | None:
        self._step("look", path)
        inode = self._names.get(path)
        facts = None if inode is None else _facts(inode)
        self._told(facts)
        return facts

    def unlink(self, path: str) -> bool:
        self._step("unlink", path)
        inode = self._names.get(path)
        if inode is None:
            self._told(False)
            return False
        if inode.directory:
            raise self._failed(errno.EISDIR, path)
        self._platter.set(path, None)
        self._platter.watcher(self._process, "unlink", path, inode)
        self._told(True)
        return True

    def replace(self, source: str, path: str) -> None:
        self._step("replace", f"{source} {path}")
        inode = self._names.get(source)
        if inode is None:
            raise self._failed(errno.ENOENT, source)
        self._need_folder(path)
        self._platter.set(source, None)
        self._platter.set(path, inode)
        self._told(True)

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)
        if path not in self._names:
            raise self._failed(errno.ENOENT, path)
        self._platter.settle(path)

    def sync_all(self) -> None:
        self._step("sync_all", "")
        self._platter.changes.clear()
        files = [*self._names.values(), *(file.inode for file in self._platter.open.values())]
        for inode in files:
            if not inode.spoilt:
                inode.versions = [inode.data]

    def mkdir(self, path: str) -> bool:
        self._step("mkdir", path)
        if path in self._names:
            self._told(False)
            return False
        self._need_folder(path)
        self._platter.set(path, Inode(f"dir:{path}", directory=True, mtime=self._platter.clock.wall()))
        self._told(True)
        return True

    def rmdir(self, path: str) -> bool:
        self._step("rmdir", path)
        if path not in self._names or self._platter.listing(path, 0):
            self._told(False)
            return False
        self._platter.set(path, None)
        self._told(True)
        return True

    def scan(self, path: str, *, times: bool = False) -> list[Found]:
        self._step("scan", path)
        listed = self._platter.listing(path, self._actor.lag())
        found = [
            Found(child.rpartition("/")[2], not i.directory, i.directory, int(i.mtime * 1e9) if times else 0)
            for child, i in sorted(listed.items(), key=lambda item: item[0])
        ]
        self._told(tuple(found))
        return found

    def touch(self, path: str) -> None:
        self._step("touch", path)
        inode = self._names.get(path)
        if inode is not None:
            inode.mtime = self._platter.clock.wall()

    def rest(self) -> None:
        """Make no call: a process does something of its own, for as long as it likes."""
        self._step("rest", "")

    def free_bytes(self) -> int:
        return 1 << 40

    def named(self, fd: int) -> str:
        """Return a name of an open file, for people."""
        file = self._platter.open.get(fd)
        if file is None:
            return f"descriptor {fd}"
        return next((path for path, i in self._names.items() if i is file.inode), file.inode.id)

    # -- inside ------------------------------------------------------------------------------------

    def _new(self) -> Inode:
        wall = self._platter.clock.wall()
        return Inode(f"{self._process}#{self._platter.count(self._process + ' files')}", mtime=wall)

    def _open(self, inode: Inode, *, writable: bool) -> int:
        fd = self._first_fd + self._platter.count(self._process + " opens")
        self._platter.open[fd] = OpenFile(inode, self._process, writable)
        return fd

    def _file(self, fd: int) -> OpenFile:
        file = self._platter.open.get(fd)
        if file is None or file.owner != self._process:
            raise oserror(errno.EBADF, str(fd))
        return file

    def _need_folder(self, path: str) -> None:
        above = self._names.get(parent(path))
        if above is None:
            raise self._failed(errno.ENOENT, path)
        if not above.directory:
            raise self._failed(errno.ENOTDIR, path)

    def _name(self, path: str, inode: Inode, what: str) -> Inode:
        self._need_folder(path)
        if path in self._names:
            raise self._failed(errno.EEXIST, path)
        self._platter.set(path, inode)
        self._platter.watcher(self._process, what, path, inode)
        return inode

    def _failed(self, code: int, path: str) -> OSError:
        self._told(errno.errorcode[code])
        return oserror(code, path)


def _facts(inode: Inode) -> Facts:
    size, mtime_ns = len(inode.data), int(inode.mtime * 1e9)
    return Facts(not inode.directory, inode.directory, inode.links, size, mtime_ns, inode=inode.number)
