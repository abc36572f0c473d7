"""When a lease may be taken over, and when a delay is over (ADR 012).

Being wrong here runs a task twice; it never completes one twice. No rule compares two machines' clocks.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from dfq.codec import parse_iso
from dfq.lease import Slot, number
from dfq.ports import UNKNOWN_BOOT, Clock, Machine
from dfq.stores.disk import DiskStore

TORN_GRACE = 1.0
REMEMBERED = 20_000


class Judge:
    """Decides for one observer: what it saw when, by its own clock, is part of the answer."""

    def __init__(
        self,
        store: DiskStore,
        clock: Clock,
        machine: Machine,
        *,
        lease: float,
        heartbeat_timeout: float | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._machine = machine
        self._lease = lease
        self._heartbeat_timeout = heartbeat_timeout
        self._seen: OrderedDict[tuple[str, int], tuple[bytes, float]] = OrderedDict()

    def held_until(self, slot: Slot, path: str) -> float | None:
        """Return None if the lease is stale, else the (elapsed) time at which to look again at the latest."""
        now = self._clock.elapsed()
        record = slot.record
        local = self._store.disk.local
        if slot.state == "torn":
            if local and self._store.lock_is_free(path):
                return self._unchanged_for(slot, TORN_GRACE, now)
            return self._unchanged_for(slot, self._lease, now)
        if slot.ttl is None and "boot_id" not in record:
            return self._by_timestamps(slot, now)
        boot, here = record.get("boot_id"), self._machine.boot_id
        same_boot, known = boot == here, UNKNOWN_BOOT not in (boot, here)
        if local and (same_boot or not known) and record.get("liveness") == "lock" and self._store.lock_is_free(path):
            return None
        if local and not same_boot and known and record.get("host") == self._machine.host:
            return None
        same_boot, deadline = same_boot and known, slot.deadline
        if same_boot and deadline is not None:
            return deadline if now < deadline else None
        return self._unchanged_for(slot, slot.ttl or self._lease, now)

    def due_at(self, slot: Slot) -> float | None:
        """Return None if a released task is due, else the (elapsed) time at which it will be."""
        now = self._clock.elapsed()
        due = delay_over(slot.record, self._clock, self._machine, self.first_seen(slot, now))
        return due if now < due else None

    def first_seen(self, slot: Slot, now: float) -> float:
        """Return since when (elapsed time) this slot has had the content it has."""
        key, digest = (slot.name, slot.generation), blake2b(slot.raw, digest_size=8).digest()
        known = self._seen.get(key)
        if known is not None and known[0] == digest:
            return known[1]
        self._seen[key] = (digest, now)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return now

    def _unchanged_for(self, slot: Slot, seconds: float, now: float) -> float | None:
        until = self.first_seen(slot, now) + seconds
        return until if now < until else None

    def _by_timestamps(self, slot: Slot, now: float) -> float | None:
        # A lease of another tool: its wall-clock times are all there is to go by.
        wall = self._clock.wall()
        ends = [moment(slot.record.get("expiry_timestamp"))]
        beat = moment(slot.record.get("heartbeat_timestamp"))
        if beat is not None and self._heartbeat_timeout is not None:
            ends.append(beat + self._heartbeat_timeout)
        known = [end for end in ends if end is not None]
        if not known:
            return self._unchanged_for(slot, self._lease, now)
        left = min(known) - wall
        return now + left if left > 0 else None


def delay_over(record: dict[str, Any], clock: Clock, machine: Machine, first_seen: float) -> float:
    """Return the (elapsed) time at which a delayed task is due.

    On the boot that set the delay its own deadline counts, whatever the wall clock does. On another one the
    task waits for the wall clock, but never longer than its delay since we first saw it.
    """
    deadline, delay = number(record.get("deadline_boottime")), number(record.get("delay_s"))
    if delay is None:
        return 0.0
    if record.get("boot_id") == machine.boot_id != UNKNOWN_BOOT and deadline is not None:
        return deadline
    due = moment(record.get("due_at"))
    left = delay if due is None else due - clock.wall()
    return min(first_seen + delay, clock.elapsed() + left)


def moment(value: Any) -> float | None:
    """Return a wall-clock time that some writer left, as text or as a number; None if it is no sane one."""
    return parse_iso(value) if isinstance(value, str) else number(value)
