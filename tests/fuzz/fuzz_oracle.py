"""What must hold for whatever a parser is given: the errors it documents and no others, in bounded time and memory."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

SECONDS = 2.0  # of processor time for one input; the slowest honest one takes some hundredths
PATIENCE = 30.0  # until one that waits for something is woken; a busy machine may take long as well
MEMORY_FACTOR = 60  # bytes of memory for each byte of input: an empty list in JSON is 3 bytes of text and 64 of memory
MEMORY_FLOOR = 4 * 1024 * 1024  # what an import or a cache may take on the way
MAX_RISE = 512 * 1024 * 1024  # of the process as a whole, for one input
LARGE = 16 * 1024  # inputs from this size on are always measured; of the others, one in so many:
MEASURED = 64

Run = Callable[[bytes], None]


class Violation(AssertionError):
    """A parser did what it must not."""


class Hang(BaseException):
    """Raised into whatever runs when its time is over. No `except Exception` may swallow it."""


def need(condition: object, what: str) -> None:
    """Raise Violation unless a condition holds."""
    if not condition:
        raise Violation(what)


@dataclass(frozen=True, slots=True)
class Target:
    """A parser, the errors that it documents, and how long its input may be."""

    name: str
    run: Run  # parses, and raises Violation if a property of the outcome does not hold
    allowed: tuple[type[BaseException], ...] = ()
    limit: int = 64 * 1024


@dataclass(frozen=True, slots=True)
class Failure:
    """One violation, with the input that shows it."""

    target: str
    what: str
    data: bytes
    where: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.target, self.where or self.what[:80]


@dataclass(slots=True)
class Judge:
    """Tries inputs on targets, and counts them."""

    alarm: bool = True  # False where somebody else needs the alarm clock: then time is looked at afterwards
    tried: int = 0
    refused: int = 0
    slowest: float = 0.0
    by_target: dict[str, int] = field(default_factory=dict)

    def check(self, target: Target, data: bytes) -> None:
        """Try one input. Raises Violation."""
        data = data[: target.limit]
        self.tried += 1
        self.by_target[target.name] = self.by_target.get(target.name, 0) + 1
        measured = len(data) >= LARGE or self.by_target[target.name] % MEASURED == 0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        with measuring(len(data)) if measured else contextlib.nullcontext():
            self._run(target, data)
        took = time.process_time() - began
        self.slowest = max(self.slowest, took)
        need(took <= (SECONDS if not measured else 10 * SECONDS), f"{target.name} took {took:.1f} s")
        rise = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        need(rise <= MAX_RISE, f"{target.name} made the process grow by {rise:,} bytes")

    def _run(self, target: Target, data: bytes) -> None:
        try:
            with time_limit(PATIENCE) if self.alarm else contextlib.nullcontext():
                target.run(data)
        except target.allowed:
            self.refused += 1
        except Violation:
            raise
        except Hang as e:
            raise Violation(f"{target.name} hangs in {innermost(e)}") from e
        except Exception as e:
            raise Violation(f"{target.name} raised {type(e).__name__} in {innermost(e)}: {str(e)[:200]}") from e


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise Hang in a block that takes longer. An alarm that was set before is set again afterwards."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    handler = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)), interval)


@contextlib.contextmanager
def measuring(size: int) -> Iterator[None]:
    """Raise Violation if a block takes more memory at its peak than so large an input may."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    allowed = MEMORY_FLOOR + MEMORY_FACTOR * size
    need(peak <= allowed, f"{peak:,} bytes of memory for an input of {size:,}; {allowed:,} are allowed")


def innermost(error: BaseException) -> str:
    """Return the innermost line of dfq in a traceback: what tells two violations apart."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/dfq/" in f.filename]
    return f"{frames[-1].filename.rpartition('/dfq/')[2]}:{frames[-1].name}" if frames else "the harness"


def failure_of(target: str, error: Violation, data: bytes) -> Failure:
    """Return a violation as it is reported."""
    cause = error.__cause__
    where = f"{type(cause).__name__} in {innermost(cause)}" if cause is not None else ""
    return Failure(target, str(error), data, where)
