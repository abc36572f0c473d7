"""Promises about names: who gets one, whether it stays, which there can be."""

from __future__ import annotations

import errno
import os
import unicodedata

from dfq.names import MAX_NAME_BYTES
from dfq.verify_fs.promise import LOST, WON, Broken, Ground, Weaker, one_winner, outcome

LONGEST = 255
NEEDED = MAX_NAME_BYTES + len("~10000.lease")
_GAP, _TORN = 3, 4  # what a reader may see instead of a file
_READS = 10  # of each reader in each round
_VERSION = b"%08d" * 64


def exclusive_create(ground: Ground) -> str:
    disk = ground.disk
    disk.mkdir("create")

    def step(round_: int, racer: int) -> int:
        return outcome(lambda: _sign(disk.create(f"create/{round_}"), racer))

    def _sign(fd: int, racer: int) -> None:
        disk.write(fd, b"%d" % racer)
        disk.close(fd)

    results = ground.race(step)
    one_winner(results, "O_CREAT|O_EXCL let them all create the name")
    for round_, fared in enumerate(results):
        _belongs(ground, f"create/{round_}", fared.index(WON))
    return f"one winner in {ground.raced}"


def exclusive_link(ground: Ground) -> str:
    disk = ground.disk
    disk.mkdir("link")

    def step(round_: int, racer: int) -> int:
        staged = disk.unnamed()
        try:
            disk.write(staged, b"%d" % racer)
            return outcome(lambda: disk.link(staged, f"link/{round_}"))
        finally:
            disk.close(staged)

    results = ground.race(step)
    one_winner(results, "link() let them all have the name")
    for round_, fared in enumerate(results):
        _belongs(ground, f"link/{round_}", fared.index(WON))
    _refuses_a_taken_name(ground)
    return f"one winner in {ground.raced}; a name that is taken is refused"


def _refuses_a_taken_name(ground: Ground) -> None:
    disk = ground.disk
    for name in ("link/mine", "link/theirs"):
        fd = disk.create(name)
        disk.write(fd, name.encode())
        disk.close(fd)
    if outcome(lambda: disk.link_path("link/mine", "link/theirs")) != LOST:
        raise Broken("link() to a name that exists did not fail with EEXIST")
    if _content(ground, "link/theirs") != b"link/theirs":
        raise Broken("link() replaced a file that had the name")


def create_against_link(ground: Ground) -> str:
    """The race of a thief, who creates the next slot, with the holder, who links its witness to it."""
    disk = ground.disk
    disk.mkdir("slot")

    def step(round_: int, racer: int) -> int:
        name = f"slot/{round_}"
        if racer % 2:
            return outcome(lambda: disk.close(disk.create(name)))
        staged = disk.unnamed()
        try:
            return outcome(lambda: disk.link(staged, name))
        finally:
            disk.close(staged)

    one_winner(ground.race(step), "a created name and a linked one were not the same")
    return f"one winner in {ground.raced}"


def atomic_rename(ground: Ground) -> str:
    disk = ground.disk
    disk.mkdir("rename")

    def put(version: int) -> None:
        fd = disk.create("rename/new")
        disk.write(fd, _VERSION.replace(b"%08d", b"%08d" % version))
        disk.close(fd)
        disk.rename("rename/new", "rename/current")

    def step(round_: int, racer: int) -> int:
        if racer == 0:
            put(round_ + 1)
            return WON
        for _ in range(_READS):
            try:
                data = _content(ground, "rename/current")
            except FileNotFoundError:
                return _GAP
            if len(data) != 8 * 64 or data != data[:8] * 64:
                return _TORN
        return WON

    put(0)
    results = ground.race(step)
    gaps, torn = (sum(code in fared for fared in results) for code in (_GAP, _TORN))
    if gaps or torn:
        raise Broken(
            f"while a file was replaced by rename, readers found nothing in {gaps} "
            f"and a part of it in {torn} of {len(results)} rounds"
        )
    return f"readers always saw a whole file in {ground.raced}"


def exclusive_rename(ground: Ground) -> str:
    disk = ground.disk
    disk.mkdir("taken")
    for round_ in range(ground.rounds):
        disk.close(disk.create(f"taken/{round_}"))

    def step(round_: int, racer: int) -> int:
        return outcome(lambda: disk.rename(f"taken/{round_}", f"taken/{round_}-{racer}"))

    one_winner(ground.race(step), "rename() let them all move the same file away")
    return f"one winner in {ground.raced}"


def long_names(ground: Ground) -> str:
    disk = ground.disk
    disk.mkdir("long")
    kept = []
    for size in (NEEDED, LONGEST):
        name = ("é" * size).encode()[:size].decode(errors="ignore")
        name += "x" * (size - len(name.encode()))
        try:
            disk.close(disk.create(f"long/{name}"))
        except OSError as e:
            if e.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.ENOENT):
                raise
            continue
        if name in _listed(ground, "long"):
            kept.append(size)
    if NEEDED not in kept:
        raise Broken(f"a name of {NEEDED} bytes was refused or changed")
    if LONGEST not in kept:
        raise Weaker(f"names of {NEEDED} bytes, but not of {LONGEST}", "enough for a queue")
    return f"up to {LONGEST} bytes"


def case(ground: Ground) -> str:
    pair = ("Dentist", "dENTIST")
    if _make(ground, "case", pair) != set(pair):
        raise Broken("names that differ in upper and lower case only are the same file")
    return "upper and lower case are told apart"


def characters(ground: Ground) -> str:
    composed = unicodedata.normalize("NFC", "café Å")
    names = (
        composed,
        unicodedata.normalize("NFD", composed),
        "24%2F7 plumber",
        "a:b*c?d",
        '"quoted" <a|b> c\\d',
        "ends with a dot.",
        "ends with a blank ",
        "con",
        "歯医者",
        "\N{TOOTH}",
    )
    found = _make(ground, "characters", names)
    wrong = [name for name in names if name not in found]
    if wrong or len(found) != len(names):
        raise Broken(f"names were refused, merged or changed, such as {wrong[0] if wrong else min(found)!r}")
    return "every character stays as it was written, Unicode is not normalised"


def _make(ground: Ground, folder: str, names: tuple[str, ...]) -> set[str]:
    """Create files of these names and return those that a listing shows."""
    ground.disk.mkdir(folder)
    for name in names:
        try:
            ground.disk.close(ground.disk.create(f"{folder}/{name}"))
        except OSError as e:
            if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
                raise
    return _listed(ground, folder)


def _listed(ground: Ground, folder: str) -> set[str]:
    return {found.name for found in ground.disk.scan(folder)}


def _content(ground: Ground, path: str) -> bytes:
    fd = ground.disk.open(path)
    try:
        return ground.disk.read(fd, 4096)
    finally:
        ground.disk.close(fd)


def _belongs(ground: Ground, path: str, winner: int) -> None:
    data = _content(ground, path)
    if data != b"%d" % winner:
        raise Broken(f"{os.path.basename(path)}: process {winner} was told that it won, but the file has {data[:20]!r}")
