"""What may lie in a queue's folders under any name, how it is made, and whether it is still there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fuzz_inputs import DAMAGES, TOKENS, damaged_by, seeds

SPARSE = 64 * 1024**3  # bytes of a file that takes no room
HASHED = "x" * 160 + "%h" + "0123456789abcdef" * 2

#: What files are called: those of tasks, of slots, of nobody.
NAMES = [
    "bad.json", "bad.json", "bad.json", "bad.lease", "bad.lease", "bad~2.lease", "bad~e1.json", "bad~e1.lease",
    f"{HASHED}.json", f"{HASHED}.lease", ".tmp-1-0011223344556677", ".hidden", "queue.json", "bad", "5", "x",
    "00", "03",
    "bad~x.json", "%zz.json", "%2e.json", "~.json", "new\nline.json", "tab\t.json", "a" * 250 + ".json", "a" * 255,
    os.fsdecode(b"\xff\xfe.json"), os.fsdecode(b"\xff"), "\u202e.json",
    "bad.json~", "bad.jsonl", "bad~2.journal", "-f.json",
]  # fmt: skip

KINDS: dict[str, Callable[[Path, bytes, Path], None]] = {}


def _kind(name: str) -> Callable[[Callable[[Path, bytes, Path], None]], None]:
    def remember(make: Callable[[Path, bytes, Path], None]) -> None:
        KINDS[name] = make

    return remember


@_kind("file")
def _file(path: Path, data: bytes, outside: Path) -> None:
    path.write_bytes(data)


@_kind("old file")
def _old(path: Path, data: bytes, outside: Path) -> None:
    path.write_bytes(data)
    os.utime(path, (1, 1))


@_kind("file from before all time")
def _ancient(path: Path, data: bytes, outside: Path) -> None:
    path.write_bytes(data)
    os.utime(path, (-(10**11), -(10**11)))  # where the filesystem has such times; others take the nearest


@_kind("file from the far future")
def _future(path: Path, data: bytes, outside: Path) -> None:
    path.write_bytes(data)
    os.utime(path, (10**12, 10**12))


@_kind("empty file")
def _empty(path: Path, data: bytes, outside: Path) -> None:
    path.touch()


@_kind("huge file")
def _huge(path: Path, data: bytes, outside: Path) -> None:
    path.write_bytes(data)
    os.truncate(path, SPARSE)


@_kind("file of mode 000")
def _closed(path: Path, data: bytes, outside: Path) -> None:
    path.write_bytes(data)
    path.chmod(0)


@_kind("folder")
def _folder(path: Path, data: bytes, outside: Path) -> None:
    path.mkdir()


@_kind("folder with a file")
def _full(path: Path, data: bytes, outside: Path) -> None:
    path.mkdir()
    (path / "inside.json").write_bytes(data)


@_kind("folder of mode 000")
def _closed_folder(path: Path, data: bytes, outside: Path) -> None:
    path.mkdir()
    path.chmod(0)


@_kind("link to nowhere")
def _nowhere(path: Path, data: bytes, outside: Path) -> None:
    path.symlink_to("/nowhere/at/all")


@_kind("link to itself")
def _itself(path: Path, data: bytes, outside: Path) -> None:
    path.symlink_to(path)


@_kind("link to a file outside")
def _outside(path: Path, data: bytes, outside: Path) -> None:
    path.symlink_to(outside / "secret.json")


@_kind("link to a folder outside")
def _outside_folder(path: Path, data: bytes, outside: Path) -> None:
    path.symlink_to(outside)


@_kind("link to a device")
def _to_device(path: Path, data: bytes, outside: Path) -> None:
    path.symlink_to("/dev/zero")


@_kind("pipe")
def _pipe(path: Path, data: bytes, outside: Path) -> None:
    os.mkfifo(path)


@_kind("socket")
def _socket(path: Path, data: bytes, outside: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # an address is at most 108 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(f"/proc/self/fd/{folder}/{path.name[:60]}")
        if len(path.name) > 60:
            os.rename(path.parent / path.name[:60], path)
    except UnicodeError:
        os.mkfifo(path)  # the address of a socket must be UTF-8 for Python
    finally:
        os.close(folder)


@_kind("device")
def _device(path: Path, data: bytes, outside: Path) -> None:
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # it never ends
    except PermissionError:
        os.mkfifo(path)


@dataclass(frozen=True, slots=True)
class Bad:
    """One thing that does not belong where it lies."""

    path: Path
    kind: str
    data: bytes
    looks: str  # what it was right after it was made

    def told(self, top: Path) -> str:
        return f"{self.kind} {str(self.path.relative_to(top))!r} {self.data[:120]!r}"

    def still_there(self) -> bool:
        """Tell whether it lies where it did, as it was."""
        return looks(self.path) == self.looks


def put(kind: str, path: Path, data: bytes, outside: Path) -> Bad | None:
    """Put something bad somewhere; None if something lies there already, or it cannot be."""
    if os.path.lexists(path):
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.is_symlink():
            return None
        KINDS[kind](path, data, outside)
    except OSError:  # a name that is too long here, a parent that is no folder
        return None
    return Bad(path, kind, data, looks(path))


def looks(path: Path) -> str:
    """Return what a path is, with its content; "gone" if it is not there."""
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "gone"
    if stat.S_ISLNK(facts.st_mode):
        return f"link to {os.readlink(path)!r}"
    if stat.S_ISREG(facts.st_mode):
        with open(path, "rb") as f:
            return f"file of {facts.st_size}: {hashlib.sha256(f.read(1024 * 1024)).hexdigest()}"
    if stat.S_ISDIR(facts.st_mode):
        return f"folder with {sorted(os.fsencode(name) for name in os.listdir(path))}"
    return f"special file {stat.S_IFMT(facts.st_mode)}"


def damaged(target: str, chance: random.Random) -> bytes:
    """Return a damaged file of a kind; now and then a valid one of that kind, or nothing but a token."""
    if chance.random() < 0.1:
        return chance.choice(TOKENS)
    data = chance.choice(seeds(target))
    names = sorted(DAMAGES)
    return damaged_by(data, [(chance.choice(names), chance.randrange(2**32)) for _ in range(chance.randint(0, 3))])


def remove(folder: Path) -> None:
    """Remove a folder with whatever is in it."""
    for top, folders, _ in os.walk(folder):
        for name in folders:
            with contextlib.suppress(OSError):
                os.chmod(os.path.join(top, name), 0o700, follow_symlinks=False) if not os.path.islink(
                    os.path.join(top, name)
                ) else None
    shutil.rmtree(folder, ignore_errors=True)
