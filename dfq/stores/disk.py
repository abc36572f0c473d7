"""A slot log's store on a disk: names that are created once, files that are written before they are named."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import TypeVar

from dfq.ports import Disk
from dfq.tree import comes_and_goes, parent

T = TypeVar("T")

COPIED = 512 * 1024 * 1024  # more than any witness has
TRIES = 4  # for a name in a directory that others may remove because it is empty


class Hold:
    """A lease that we created and keep open: the descriptor carries the lock that shows we live."""

    __slots__ = ("_disk", "_fd", "_size")

    def __init__(self, disk: Disk, fd: int, size: int) -> None:
        self._disk = disk
        self._fd: int | None = fd
        self._size = size

    @property
    def fd(self) -> int | None:
        return self._fd

    def named(self) -> bool:
        """Tell whether our lease still has its name."""
        return self._fd is not None and self._disk.facts(self._fd).links > 0

    def rewrite(self, data: bytes) -> None:
        """Replace the content in place; never through the name, which may be another's by now."""
        if self._fd is None:
            raise OSError(errno.EBADF, "the lease is closed")
        # Padded to what is there: a shorter text must not leave the end of a longer one behind.
        self._size = max(self._size, len(data))
        write_lease(self._disk, self._fd, data.ljust(self._size))

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            # Closing frees the descriptor whatever it reports, and nobody relies on the lease any more.
            with contextlib.suppress(OSError):
                self._disk.close(fd)

    def __del__(self) -> None:
        self.close()


def write_lease(disk: Disk, fd: int, data: bytes) -> None:
    """Write a lease so that all machines that share the disk see it."""
    disk.write(fd, data)
    if not disk.local:
        # NFS keeps it to itself until the file is closed, and others would judge an old lease, or an empty one.
        disk.fsync(fd)


class DiskStore:
    """What the slot log needs of a disk. With durable=False no call waits for the device."""

    def __init__(self, disk: Disk, *, durable: bool) -> None:
        self.disk = disk
        self.durable = durable
        self._real: set[str] = set()  # directories that are no links
        self._ready: set[str] = set()  # directories known to exist, and to be durable if that is asked

    def exists(self, path: str) -> bool:
        return self._reachable(path) and self.disk.exists(path)

    def hold(self, path: str, data: bytes, *, locked: bool = True) -> Hold | None:
        """Create a lease and lock it; None if the name is taken.

        The name is ours from the first call on, so the lease may be seen empty for a moment.
        """
        try:
            fd = self.making(path, self.disk.create)
        except FileExistsError:
            return None
        try:
            if locked:
                self.disk.lock(fd)
            write_lease(self.disk, fd, data)
        except BaseException:
            self.disk.close(fd)
            raise
        return Hold(self.disk, fd, len(data))

    def take_up(self, path: str) -> Hold | None:
        """Open a lease that exists, to go on with it; None if it is gone."""
        if not self._reachable(path):
            return None
        try:
            fd = self.disk.open(path, write=True)
        except FileNotFoundError:
            return None
        facts = self.disk.facts(fd)
        if not facts.regular:
            self.disk.close(fd)
            return None
        return Hold(self.disk, fd, facts.size)

    def stage(self, data: bytes) -> int:
        """Write content that has no name yet; it is durable before it gets one."""
        fd = self.disk.unnamed()
        try:
            self.disk.write(fd, data)
            if self.durable:
                self.disk.fsync(fd)
        except BaseException:
            self.disk.close(fd)
            raise
        return fd

    def name(self, staged: int, path: str) -> bool:
        """Give staged content a name; False if the name is taken."""
        try:
            self.making(path, lambda p: self.disk.link(staged, p))
        except FileExistsError:
            return False
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            return self._name_elsewhere(self.disk.read(staged, COPIED), path)
        return True

    def _name_elsewhere(self, data: bytes, path: str) -> bool:
        """Give content a name on another filesystem, where it has to be written anew; False if the name is taken."""
        fd = self.disk.unnamed(parent(path))
        try:
            self.disk.write(fd, data)
            if self.durable:
                self.disk.fsync(fd)
            self.disk.link(fd, path)
        except FileExistsError:
            return False
        finally:
            self.disk.close(fd)
        return True

    def name_again(self, source: str, path: str) -> bool | None:
        """Give a file a second name; False if it is taken, None if the source is gone."""
        try:
            self.making(path, lambda p: self.disk.link_path(source, p))
        except FileExistsError:
            return False
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno != errno.EXDEV:
                raise
            data = self.read(source, COPIED)
            return None if data is None else self._name_elsewhere(data, path)
        return True

    def drop(self, staged: int) -> None:
        """Let go of staged content; what has a name stays."""
        self.disk.close(staged)

    def read(self, path: str, limit: int) -> bytes | None:
        """Return up to limit + 1 bytes of a file; None if it is gone, b"" if it is no regular file."""
        if not self._reachable(path):
            return None
        try:
            fd = self.disk.open(path)
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES):
                return b""
            raise
        try:
            return self.disk.read(fd, limit + 1) if self.disk.facts(fd).regular else b""
        finally:
            self.disk.close(fd)

    def lock_is_free(self, path: str) -> bool:
        """Tell whether nobody holds the lock of a lease."""
        try:
            fd = self.disk.open(path)
        except OSError:
            return False
        try:
            return self.disk.try_lock(fd)
        finally:
            self.disk.close(fd)

    @contextlib.contextmanager
    def standing(self, path: str, *, alone: bool = False) -> Iterator[bool]:
        """Hold on to a file so that its name stands still; False if it is gone, or somebody else is at it.

        Names are removed by name, not by what they stood for when somebody looked. Whoever removes what a witness
        guards holds on to it meanwhile, and whoever removes the witness itself does so alone: so no name can have
        become another task's in between.
        """
        try:
            fd = self.disk.open(path, write=alone and not self.disk.local)  # NFS wants it so
        except (FileNotFoundError, PermissionError):  # gone, or another user's own business
            yield False
            return
        try:
            yield self._locked(fd, alone) and self._is_at(path, fd)
        finally:
            self.disk.close(fd)

    def _locked(self, fd: int, alone: bool) -> bool:
        try:
            return self.disk.try_lock(fd, alone=alone)
        except OSError as e:
            if e.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                return True  # no locks here: the time for which a witness stays is all there is
            raise

    def _is_at(self, path: str, fd: int) -> bool:
        there, ours = self.disk.look(path), self.disk.facts(fd)
        return there is not None and there.regular and there.inode == ours.inode

    def remove(self, path: str) -> bool:
        return self._reachable(path) and self.disk.unlink(path)

    def sync(self, path: str) -> None:
        """Make a name durable: the directory that it is in."""
        if self.durable:
            directory = parent(path)
            self.disk.fsync_dir(directory or ".")
            if comes_and_goes(directory):  # it may have been made a moment ago, by anybody
                self.disk.fsync_dir(parent(directory))

    def sync_folder(self, folder: str) -> None:
        """Make what was removed from a folder stay removed; nothing if it is not there."""
        if self.durable:
            with contextlib.suppress(FileNotFoundError):
                self.disk.fsync_dir(folder)

    def sync_content(self, path: str) -> None:
        """Make a file durable that somebody else wrote."""
        if self.durable:
            try:
                fd = self.disk.open(path)
            except FileNotFoundError:
                return
            try:
                self.disk.fsync(fd)
            finally:
                self.disk.close(fd)

    def ready(self, directory: str) -> None:
        """Make sure that a directory exists, and that a power cut will not take it away."""
        if directory in self._ready:
            return
        if above := parent(directory):
            self.ready(above)
        if not self.disk.mkdir(directory):
            self._reachable(f"{directory}/")
        if comes_and_goes(directory):
            return  # not to be relied on later; sync() makes it durable with what is in it
        if self.durable:
            self.disk.fsync_dir(above or ".")
        self._ready.add(directory)

    def _reachable(self, path: str) -> bool:
        """Tell whether the directory of a path exists; raise if it is a link, whose target is not ours."""
        directory = parent(path)
        if directory in self._real or not directory:
            return True
        facts = self.disk.look(directory)
        if facts is None:
            return False
        if not facts.directory:
            raise OSError(errno.ENOTDIR, "a file or link stands where a folder belongs", directory)
        if not comes_and_goes(directory):
            self._real.add(directory)
        return True

    def _forget(self, directory: str) -> None:
        """Know nothing of a directory any more, nor of those above it: another tool may have removed them all."""
        while directory:
            self._ready.discard(directory)
            directory = parent(directory)

    def making(self, path: str, create: Callable[[str], T]) -> T:
        """Create a name, and its directory if that is missing or was removed meanwhile."""
        directory = parent(path)
        for _ in range(TRIES if comes_and_goes(directory) else 1):
            self.ready(directory)
            try:
                return create(path)
            except FileNotFoundError:
                self._forget(directory)
                if self.disk.exists(directory) and not comes_and_goes(directory):
                    raise
        self.ready(directory)
        return create(path)
