"""The log of all writes to a disk, as dm-log-writes left it, and the states that a power cut could leave behind.

The log has entries in the order in which they became durable: a flush comes after the writes that had ended before it
was asked for, a write that bypasses the cache (FUA) when it ended, a mark after all that was durable when it was set.
So the writes before a flush form a *group* with it: at the moment before that flush ends, everything before the
group is on the disk, all marks before it were set, and of the group the disk has written what it liked.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512  # what the log counts in
ATOMIC = 4096  # what a disk writes whole or not at all; ext4 relies on that for its own blocks
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8

_SUPER = struct.Struct("<QQQI")
_ENTRY = struct.Struct("<QQQQ")


class BadLog(Exception):
    """This is no log of writes, or not one that we can read."""


@dataclass(frozen=True, slots=True)
class Write:
    """Some sectors that were written: where they go on the disk, and where in the log their content is."""

    at: int
    size: int
    content: int
    discard: bool = False


@dataclass(slots=True)
class Step:
    """What became durable together, and the marks that were set before that."""

    marks: list[str] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Figures:
    entries: int
    writes: int
    flushes: int
    written: int
    marks: int


class WriteLog:
    """A log as a list of steps. Step 0 happens to the disk as it was when the log began."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self.steps: list[Step] = []
        self.size = 0  # bytes of the log that are in use
        self.figures = self._parse()

    def close(self) -> None:
        os.close(self._fd)

    def _parse(self) -> Figures:
        magic, version, entries, sector = _SUPER.unpack(os.pread(self._fd, _SUPER.size, 0))
        if magic != MAGIC or version != 1 or sector != SECTOR:
            raise BadLog(f"magic {magic:x}, version {version}, sectors of {sector} bytes")
        place, marks, pending = SECTOR, 0, Step()
        writes = flushes = written = 0
        for _ in range(entries):
            at, sectors, flags, length = _ENTRY.unpack(os.pread(self._fd, _ENTRY.size, place))
            place += SECTOR
            if flags & MARK:
                text = os.pread(self._fd, length, place - SECTOR + _ENTRY.size)
                pending.marks.append(text.rstrip(b"\0").decode("ascii"))
                marks += 1
                continue
            if sectors:
                discard = bool(flags & DISCARD)
                pending.writes.append(Write(at * SECTOR, sectors * SECTOR, place, discard))
                writes += 1
                if not discard:
                    place += sectors * SECTOR
                    written += sectors * SECTOR
            if flags & (FLUSH | FUA):
                flushes += 1
                self.steps.append(pending)
                pending = Step()
        self.steps.append(pending)  # never flushed
        self.size = place
        return Figures(entries, writes, flushes, written, marks)

    def apply(self, write: Write, disk: int, size: int | None = None) -> None:
        """Do a write, or its first bytes, to a disk."""
        size = write.size if size is None else size
        data = bytes(size) if write.discard else os.pread(self._fd, size, write.content)
        os.pwrite(disk, data, write.at)


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut before a step has ended: which of its writes the disk did, and how many bytes of each."""

    step: int
    kind: str
    done: tuple[tuple[int, int], ...]


KINDS = ("nothing of it", "a prefix", "a subset", "torn writes", "all of it")


def choose(log: WriteLog, chance: random.Random, count: int, steps_of: Sequence[Sequence[int]]) -> list[Cut]:
    """Return so many possible power cuts, in the order of their steps, taken from the given ones in turn."""
    steps = sorted(chance.choice(steps_of[n % len(steps_of)]) for n in range(count))
    return [_cut(log, chance, step) for step in steps]


def _cut(log: WriteLog, chance: random.Random, step: int) -> Cut:
    sizes = [write.size for write in log.steps[step].writes]
    kind = chance.choice(KINDS) if sizes else KINDS[0]
    whole = list(enumerate(sizes))
    if kind == "nothing of it":
        done = []
    elif kind == "a prefix":
        done = whole[: chance.randrange(len(whole) + 1)]
    elif kind == "all of it":
        done = whole
    else:
        share = chance.random()
        done = [pair for pair in whole if chance.random() < share]
        if kind == "torn writes":
            done = [(n, _torn(chance, log.steps[step].writes[n])) for n, _ in done]
    return Cut(step, kind, tuple(done))


def _torn(chance: random.Random, write: Write) -> int:
    """Return how many bytes of a write were done before the power went."""
    first = ATOMIC - write.at % ATOMIC  # to the next boundary
    ends = [0, *range(first, write.size, ATOMIC), write.size]
    return chance.choice(ends)


def replay(log: WriteLog, base: Path, work: Path, cuts: list[Cut]) -> Iterator[tuple[Cut, list[str]]]:
    """For each cut, leave in `work` the disk that it leaves behind, and yield the marks that were set before it.

    Cuts are in the order of their steps. `base` is the disk as it was when the log began; it is not changed.
    """
    durable = work.with_suffix(".durable")
    copy_sparse(base, durable)
    disk = os.open(durable, os.O_RDWR)
    marks: list[str] = []
    now = 0
    try:
        for cut in cuts:
            while now < cut.step:
                marks += log.steps[now].marks
                for write in log.steps[now].writes:
                    log.apply(write, disk)
                now += 1
            step = log.steps[now]
            copy_sparse(durable, work)
            image = os.open(work, os.O_RDWR)
            for number, size in cut.done:
                log.apply(step.writes[number], image, size)
            os.close(image)
            yield cut, marks + step.marks
    finally:
        os.close(disk)
        durable.unlink(missing_ok=True)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy what a file has, and leave holes where it has them."""
    with source.open("rb") as s, target.open("wb") as t:
        end = os.fstat(s.fileno()).st_size
        t.truncate(end)
        place = 0
        while place < end:
            try:
                place = os.lseek(s.fileno(), place, os.SEEK_DATA)
            except OSError:
                break  # no more data
            stop = os.lseek(s.fileno(), place, os.SEEK_HOLE)
            while place < stop:
                data = os.pread(s.fileno(), min(stop - place, 1 << 20), place)
                place += os.pwrite(t.fileno(), data, place)
