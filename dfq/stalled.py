"""Which leases show no sign of life, and what will come of them: for people who look.

It decides nothing. Who may take a lease over is the Judge's to say (see staleness), and it waits longer: a lease
whose holder missed its heartbeats is stalled here while it still has time left.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from dfq.claim import SELF_STOP
from dfq.codec import iso
from dfq.lease import Slot
from dfq.ports import Clock, Machine
from dfq.staleness import TORN_GRACE, Judge, moment
from dfq.stores.disk import DiskStore

HOLDER_DEAD, OTHER_BOOT, EXPIRED, NO_HEARTBEAT, UNREADABLE = (
    "holder dead",
    "other boot",
    "expired",
    "no heartbeat",
    "unreadable",
)


class Stall(NamedTuple):
    """What is the matter with a lease."""

    why: str
    since: str | None  # the last sign of life
    outlook: str  # what will happen


class Pulse:
    """Tells leases that show no sign of life from those that do."""

    def __init__(
        self,
        store: DiskStore,
        judge: Judge,
        clock: Clock,
        machine: Machine,
        *,
        lease: float,
        heartbeat_timeout: float | None,
        max_attempts: int,
    ) -> None:
        self._store = store
        self._judge = judge
        self._clock = clock
        self._machine = machine
        self._lease = lease
        self._heartbeat_timeout = heartbeat_timeout
        self._max_attempts = max_attempts

    def feel(self, slot: Slot, path: str) -> Stall | None:
        """Return what is the matter with a lease; None if it shows life."""
        beat, written = moment(slot.record.get("heartbeat_timestamp")), self._written(path)
        why, by_stamps = self._why(slot, path, beat, written)
        until = self._judge.held_until(slot, path)
        if why is None and until is None:
            why = UNREADABLE if slot.state == "torn" else EXPIRED  # it ran out while we looked
        if why is None:
            return None
        return Stall(why, _as_text(beat, written), self._outlook(slot, until, by_stamps))

    def _why(self, slot: Slot, path: str, beat: float | None, written: float | None) -> tuple[str | None, bool]:
        """Return what is the matter, and whether another machine's time stamps were all there was to go by."""
        record, machine, local = slot.record, self._machine, self._store.disk.local
        wall = self._clock.wall()
        if slot.state == "torn":
            # A claim is a file that is empty for a moment. A time to come is no sign of one: a clock was set.
            fresh = written is not None and 0 <= wall - written < TORN_GRACE
            return (None if fresh else UNREADABLE), False
        same_boot = record.get("boot_id") == machine.boot_id
        renews = record.get("liveness") == "lock"  # the others are renewed when a script gets round to it
        if local and same_boot and renews and self._store.lock_is_free(path):
            return HOLDER_DEAD, False
        if local and not same_boot and "boot_id" in record and record.get("host") == machine.host:
            return OTHER_BOOT, False
        ttl, deadline = slot.ttl, slot.deadline
        if same_boot and deadline is not None:
            left = deadline - self._clock.elapsed()
            if left <= 0:
                return EXPIRED, False
            return (NO_HEARTBEAT if renews and ttl and left < (1 - SELF_STOP) * ttl else None), False
        ends = moment(record.get("expiry_timestamp"))
        if ends is not None and wall >= ends:
            return EXPIRED, True
        patience = self._heartbeat_timeout if ttl is None else SELF_STOP * ttl if renews else None
        if ends is None and patience is None:
            patience = ttl or self._lease
        last = beat if beat is not None else written
        silent = patience is not None and last is not None and wall - last > patience
        return (NO_HEARTBEAT if silent else None), True

    def _outlook(self, slot: Slot, until: float | None, by_stamps: bool) -> str:
        fate = "taken over" if slot.attempt < self._max_attempts else "a dead letter"
        if until is None:
            return f"{fate} at the next poll"
        left = f"{max(1.0, until - self._clock.elapsed()):.0f} s"
        if by_stamps:
            # Two machines' clocks need not agree, so those who wait go by what they see, and so must we.
            host = slot.record.get("host")
            whose = host if isinstance(host, str) and host else "whoever wrote it"
            return f"{fate} within {left} if it stays silent (by the clock of {whose})"
        if slot.state == "torn":
            return f"{fate} within {left} if it stays so"
        return f"{fate} in {left}"

    def _written(self, path: str) -> float | None:
        facts = self._store.disk.look(path)
        return None if facts is None else facts.mtime_ns / 1e9


def _as_text(beat: float | None, written: float | None) -> str | None:
    for moment_ in (beat, written):
        if moment_ is not None:
            with contextlib.suppress(ValueError, OverflowError, OSError):  # of another writer: any number at all
                return iso(moment_)
    return None
