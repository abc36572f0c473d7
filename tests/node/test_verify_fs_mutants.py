"""Who checks the verifier: for each promise, filesystems that lie about it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import unicodedata
from pathlib import Path

import pytest

from dfq.ports import Facts, Found
from dfq.providers.filesystem.wake import Events
from dfq.verify_fs import PROMISES, files, locks, verify
from dfq.verify_fs.calls import Calls

GAP = 0.002  # how long a filesystem that does two things for one stands between them


def unsupported(*_: object, **__: object) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


class ExclIsIgnored(Calls):
    def create(self, path: str) -> int:
        return os.open(self._prefix + path, os.O_CREAT | os.O_RDWR, 0o664)


class LooksThenCreates(Calls):
    """As a client of an old network filesystem does: no server decides who was first."""

    def create(self, path: str) -> int:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "exists", path)
        time.sleep(GAP)
        return os.open(self._prefix + path, os.O_CREAT | os.O_RDWR, 0o664)


class EveryCreateFails(Calls):
    def create(self, path: str) -> int:
        if path.startswith("create/"):
            raise FileExistsError(errno.EEXIST, "exists", path)
        return super().create(path)


class LinkReplaces(Calls):
    def link(self, fd: int, path: str) -> None:
        temporary = f"{path}.{os.getpid()}.{fd}"
        super().link(fd, temporary)
        self.rename(temporary, path)

    def link_path(self, source: str, path: str) -> None:
        self.unlink(path)
        super().link_path(source, path)


class LinkPathReplaces(Calls):
    def link_path(self, source: str, path: str) -> None:
        self.unlink(path)
        super().link_path(source, path)


class LooksThenLinks(Calls):
    def link(self, fd: int, path: str) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "exists", path)
        time.sleep(GAP)
        LinkReplaces.link(self, fd, path)  # type: ignore[arg-type]


class NoLinks(Calls):
    link = link_path = unsupported  # type: ignore[assignment]


class LocksDoNothing(Calls):
    def lock(self, fd: int) -> None:
        pass

    def try_lock(self, fd: int) -> bool:
        return True


class LocksOfOneProcessOnly(Calls):
    """Locks that are shared by all: a filesystem that asks nobody."""

    def lock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_SH)


class LocksStay(Calls):
    def try_lock(self, fd: int) -> bool:
        return False


class PosixLocks(Calls):
    """They go when their process closes any descriptor of the file, and a forked child does not share them."""

    def lock(self, fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX)

    def try_lock(self, fd: int) -> bool:
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


class PosixLocksKeptByTheirOwner(PosixLocks):
    """As some network filesystems do: closing another descriptor is safe, but the lock dies with its process."""

    def close(self, fd: int) -> None:
        if self.holding and fd != self.holding:
            return
        super().close(fd)

    holding = 0

    def lock(self, fd: int) -> None:
        super().lock(fd)
        self.holding = fd


class LocksFail(Calls):
    lock = unsupported  # type: ignore[assignment]


class RenameRemovesFirst(Calls):
    def rename(self, source: str, path: str) -> None:
        self.unlink(path)
        time.sleep(GAP)
        super().rename(source, path)


class RenameCopies(Calls):
    def rename(self, source: str, path: str) -> None:
        data = Path(self._prefix + source).read_bytes()
        with open(self._prefix + path, "wb", buffering=0) as f:
            for at in range(0, len(data), 100):
                f.write(data[at : at + 100])
                time.sleep(GAP / 4)
        self.unlink(source)


class RenameLeavesTheSource(Calls):
    def rename(self, source: str, path: str) -> None:
        os.link(self._prefix + source, self._prefix + path)
        time.sleep(GAP)
        self.unlink(source)


class LinkCountStays(Calls):
    """As with a file that is renamed out of sight instead of being removed."""

    def facts(self, fd: int) -> Facts:
        facts = super().facts(fd)
        return facts._replace(links=max(1, facts.links))


class LinkCountIsOne(Calls):
    def facts(self, fd: int) -> Facts:
        return super().facts(fd)._replace(links=1)


class UnnamedFilesShow(Calls):
    def unnamed(self) -> int:
        fd = self.create("draft")
        self._named[fd] = "draft"
        return fd


class NoUnnamedFiles(Calls):
    unnamed = unsupported  # type: ignore[assignment]


class DotfilesOnly(Calls):
    def unnamed(self) -> int:
        self._tmpfile = False
        return super().unnamed()


class WritesAreLost(Calls):
    def write(self, fd: int, data: bytes) -> None:
        pass


class WritesStayInTheirProcess(Calls):
    """As with a cache that is not coherent: the writer reads what it wrote, others the old content."""

    writer = 0

    def write(self, fd: int, data: bytes) -> None:
        self.writer = os.getpid()
        super().write(fd, data)

    def read(self, fd: int, limit: int) -> bytes:
        return super().read(fd, limit) if self.writer == os.getpid() else b""


class NoFsync(Calls):
    fsync = unsupported  # type: ignore[assignment]


class NoFsyncOfFolders(Calls):
    fsync_dir = unsupported  # type: ignore[assignment]


class FolderTimesStandStill(Calls):
    def look(self, path: str) -> Facts | None:
        facts = super().look(path)
        return facts and facts._replace(mtime_ns=12345)


class OnlyLinksAreNotNoticed(Calls):
    """A folder's time that tells of some changes but not of the one that a push makes."""

    def link_path(self, source: str, path: str) -> None:
        folder = os.path.dirname(self._prefix + path)
        before = os.stat(folder)
        super().link_path(source, path)
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


class WholeSeconds(Calls):
    def look(self, path: str) -> Facts | None:
        facts = super().look(path)
        return facts and facts._replace(mtime_ns=facts.mtime_ns // 10**9 * 10**9)


class ClockIsBehind(Calls):
    def look(self, path: str) -> Facts | None:
        facts = super().look(path)
        return facts and facts._replace(mtime_ns=facts.mtime_ns - 60 * 10**9)


class Deaf(Calls):
    class Silence(Events):
        def wait(self, seconds: float) -> list[tuple[str, str]] | None:
            super().wait(seconds)
            return []

    def events(self) -> Events:
        return self.Silence()


class ShortNames(Calls):
    longest = 143

    def create(self, path: str) -> int:
        if len(os.fsencode(os.path.basename(path))) > self.longest:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return super().create(path)


class NamesOf220Bytes(ShortNames):
    longest = 220


class CutsNames(Calls):
    def create(self, path: str) -> int:
        return super().create(os.path.join(os.path.dirname(path), os.path.basename(path)[:100]))


class CaseIsIgnored(Calls):
    def create(self, path: str) -> int:
        return super().create(path.lower())


class UnicodeIsNormalised(Calls):
    def create(self, path: str) -> int:
        return super().create(unicodedata.normalize("NFC", path))


class ListsDecomposedNames(Calls):
    """Keeps two forms apart, but shows both as one."""

    def scan(self, path: str, *, times: bool = False) -> list[Found]:
        found = super().scan(path, times=times)
        return [f._replace(name=unicodedata.normalize("NFD", f.name)) for f in found]


class ColonsAreRefused(Calls):
    def create(self, path: str) -> int:
        if set(os.path.basename(path)) & set(':*?"<>|'):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().create(path)


class Remote:
    """Turns a sabotage into one of a filesystem that is not local."""

    def __init__(self, calls: type[Calls]) -> None:
        self._calls = calls
        self.__name__ = f"Remote{calls.__name__}"

    def __call__(self, folder: str) -> Calls:
        return self._calls(folder, local=False)


BROKEN: list[tuple[type[Calls], str]] = [
    (ExclIsIgnored, "exclusive create"),
    (LooksThenCreates, "exclusive create"),
    (EveryCreateFails, "exclusive create"),
    (LinkReplaces, "exclusive link"),
    (LinkPathReplaces, "exclusive link"),
    (LooksThenLinks, "exclusive link"),
    (NoLinks, "exclusive link"),
    (LooksThenCreates, "create against link"),
    (LooksThenLinks, "create against link"),
    (LinkCountStays, "link count"),
    (LinkCountIsOne, "link count"),
    (UnnamedFilesShow, "unnamed files"),
    (NoUnnamedFiles, "unnamed files"),
    (WritesAreLost, "writes in place"),
    (WritesStayInTheirProcess, "writes in place"),
    (LocksDoNothing, "lock between processes"),
    (LocksOfOneProcessOnly, "lock between processes"),
    (LocksFail, "lock between processes"),
    (LocksStay, "lock ends with its process"),
    (LocksDoNothing, "lock does not end before"),
    (PosixLocks, "lock does not end before"),
    (PosixLocksKeptByTheirOwner, "lock does not end before"),
    (RenameRemovesFirst, "atomic rename"),
    (RenameCopies, "atomic rename"),
    (RenameLeavesTheSource, "exclusive rename"),
    (NoFsync, "flushing"),
    (NoFsyncOfFolders, "flushing"),
    (FolderTimesStandStill, "folder times"),
    (OnlyLinksAreNotNoticed, "folder times"),
    (ShortNames, "long names"),
    (CutsNames, "long names"),
    (CaseIsIgnored, "upper and lower case"),
    (UnicodeIsNormalised, "any character"),
    (ListsDecomposedNames, "any character"),
    (ColonsAreRefused, "any character"),
]

WEAKER: list[tuple[type[Calls] | Remote, str, str]] = [
    (DotfilesOnly, "unnamed files", "dotfile"),
    (WholeSeconds, "folder times", "two seconds"),
    (ClockIsBehind, "folder times", "set the clocks right"),
    (Deaf, "file events", "every second"),
    (NamesOf220Bytes, "long names", "enough"),
    (Remote(Calls), "lock between processes", "by time"),
    (Remote(LocksDoNothing), "lock between processes", "by time"),
    (Remote(LocksStay), "lock ends with its process", "by time"),
    (Remote(PosixLocks), "lock does not end before", "by time"),
    (Remote(LinkCountStays), "link count", "ack"),
]

BROKEN_REMOTELY: list[tuple[Remote, str]] = [
    (Remote(LocksFail), "lock between processes"),  # a claim takes the lock, so that must at least succeed
    (Remote(ExclIsIgnored), "exclusive create"),
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.5)
    monkeypatch.setattr(files, "PATIENCE", 1.5)


def judged(folder: Path, calls: type[Calls] | Remote, name: str) -> tuple[str, str, str]:
    (promise,) = (p for p in PROMISES if p.name == name)
    report = verify(str(folder), rounds=30, calls=calls, promises=(promise,))
    assert os.listdir(folder) == []
    _, verdict = report.verdicts
    assert report.fit == (verdict.outcome != "broken")
    return verdict.outcome, verdict.found, verdict.means


@pytest.mark.parametrize("name", [promise.name for promise in PROMISES])
def test_an_honest_filesystem_keeps_the_promise(tmp_path: Path, name: str) -> None:
    assert judged(tmp_path, Calls, name)[0] == "kept"


@pytest.mark.parametrize(("calls", "name"), BROKEN, ids=lambda x: getattr(x, "__name__", x))
def test_a_broken_promise_is_found(tmp_path: Path, calls: type[Calls], name: str) -> None:
    outcome, found, means = judged(tmp_path, calls, name)
    assert outcome == "broken", found
    assert found
    assert means


@pytest.mark.parametrize(("calls", "name", "means"), WEAKER, ids=lambda x: getattr(x, "__name__", x))
def test_a_weaker_promise_is_told_with_what_it_means(
    tmp_path: Path, calls: type[Calls] | Remote, name: str, means: str
) -> None:
    outcome, found, meaning = judged(tmp_path, calls, name)
    assert outcome == "weaker", found
    assert means in meaning


@pytest.mark.parametrize(("calls", "name"), BROKEN_REMOTELY, ids=lambda x: getattr(x, "__name__", x))
def test_what_every_filesystem_must_do_is_not_excused_elsewhere(tmp_path: Path, calls: Remote, name: str) -> None:
    assert judged(tmp_path, calls, name)[0] == "broken"


def test_every_promise_has_a_filesystem_that_breaks_it() -> None:
    told = {name for _, name in BROKEN} | {name for _, name, _ in WEAKER}
    assert told == {promise.name for promise in PROMISES}


def test_a_process_that_gets_stuck_is_a_broken_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs(Calls):
        def create(self, path: str) -> int:
            if path == "create/3":
                time.sleep(60)
            return super().create(path)

    monkeypatch.setattr("dfq.verify_fs.processes.PATIENCE", 0.5)
    started = time.monotonic()
    outcome, found, _ = judged(tmp_path, Hangs, "exclusive create")
    assert (outcome, "stuck" in found) == ("broken", True)
    assert time.monotonic() - started < 30


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    report = verify(str(tmp_path), rounds=1, promises=PROMISES[:1])
    assert report.left_behind is not None
    assert os.path.isdir(report.left_behind)
