"""What came of trying to claim a task: a Claim, or why there is none."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from dfq.ports import Clock
from dfq.queue import Held
from dfq.stores.disk import Hold
from dfq.tree import Entry

SELF_STOP = 0.8  # of its time after which a worker that cannot renew gives up by itself


class Blocked(NamedTuple):
    """A task that cannot be claimed now: look again at `until` (elapsed time; never, if None)."""

    until: float | None
    dead: bool = False
    held: bool = False  # by a worker that may die before then
    in_the_way: str | None = None  # what has the name of the witness and is none


class Gone(NamedTuple):
    """A task that is over: its entry in the frontier went, or was removed just now."""


class Raced(NamedTuple):
    """Somebody else claimed the task in this very moment."""


class Claim(Held):
    """A generation of a task that is ours."""

    def __init__(
        self,
        entry: Entry,
        record: dict[str, Any],
        task: dict[str, Any],
        hold: Hold,
        clock: Clock,
        started: float,
    ) -> None:
        self.entry = entry
        self.record = record
        self.task = task
        self.hold = hold
        self.generation: int = record["generation"]
        self.attempt: int = record["attempt"]
        self.token: int = record["token"]
        self.nonce = str(record["nonce"])  # another writer's may be a number
        self.ttl: float = record["ttl_s"]
        self.beat_at = started  # when the last renewal that worked was begun
        self.retry_at = 0.0  # when to try again after a renewal that failed
        self.claimed_at = started
        self.ended = False
        self.home = ""  # the queue that handed it out
        self.mutex = threading.Lock()  # between the caller and the thread that renews
        self._clock = clock
        self._lost = False

    @property
    def lost(self) -> bool:  # type: ignore[override]
        if not self._lost and not self.ended and self._clock.elapsed() > self.beat_at + SELF_STOP * self.ttl:
            return True
        return self._lost

    @property
    def liveness_fd(self) -> int | None:  # type: ignore[override]
        return self.hold.fd

    @property
    def receipt(self) -> str:  # type: ignore[override]
        return f"{self.generation}.{self.nonce}.{self.entry.lane}.{self.entry.name}"

    def lose(self) -> None:
        """Remember that this generation is over for us."""
        self._lost = True
        self.end()

    @property
    def ran_out(self) -> bool:
        """True when its time is over and nobody renewed it; another may have it at any moment."""
        return self._clock.elapsed() > self.beat_at + self.ttl

    def end(self) -> None:
        """Let go of the lease file, and so of its lock."""
        self.ended = True
        self.hold.close()
