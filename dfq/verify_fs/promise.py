"""What a promise is, how a check says that it is not kept, and the ground that checks stand on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dfq.verify_fs.calls import Calls
from dfq.verify_fs.processes import Race

Outcome = Literal["kept", "weaker", "broken"]

WON, LOST = 1, 2  # how a racer fared
_FAILED = 100  # plus the number of the error


@dataclass(frozen=True, slots=True)
class Ground:
    """Where to check, and how hard."""

    disk: Calls
    processes: int
    rounds: int

    def race(self, step: Callable[[int, int], int]) -> list[bytes]:
        """Let processes race and return how each fared, by round; an error of a racer is raised here."""
        results = Race(self.processes, self.rounds).run(step)
        for fared in results:
            for code in fared:
                if code >= _FAILED:
                    raise OSError(code - _FAILED, os.strerror(code - _FAILED))
        return results

    @property
    def raced(self) -> str:
        return f"{self.rounds} rounds of {self.processes} processes"


class Broken(Exception):
    """The promise is not kept; the text says what was seen."""


class Weaker(Exception):
    """Less than promised, but enough to work with."""

    def __init__(self, found: str, means: str) -> None:
        super().__init__(found)
        self.means = means


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise, the check of it, and what would follow if it was broken.

    The check returns what it found, or raises Broken, Weaker or OSError.
    """

    name: str
    check: Callable[[Ground], str]
    if_broken: str
    if_remote: str = ""  # for what a filesystem that is not local is not relied upon for: how DFQ does without


def outcome(call: Callable[[], object]) -> int:
    """Return how a racer fared that tried to get something only one can have."""
    try:
        call()
    except (FileExistsError, FileNotFoundError):
        return LOST
    except OSError as e:
        return _FAILED + min(e.errno or errno.EIO, 255 - _FAILED)
    return WON


def one_winner(results: list[bytes], what: str) -> None:
    """Raise Broken unless every round had exactly one winner."""
    crowds = [fared.count(WON) for fared in results]
    several, none = sum(c > 1 for c in crowds), crowds.count(0)
    if several:
        raise Broken(f"{several} of {len(crowds)} rounds had up to {max(crowds)} winners: {what}")
    if none:
        raise Broken(f"{none} of {len(crowds)} rounds had no winner: {what}")
