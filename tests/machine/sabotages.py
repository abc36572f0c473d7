"""Ways to break the code under test, each of which a stage must notice: a check that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def entry_goes_first() -> None:
    """An ack that removes the task before its witness is there: a crash in between loses it."""
    from dfq.slotlog import SlotLog

    complete = SlotLog.complete

    def broken(self: Any, claim: Any, witness: dict[str, Any], **options: Any) -> None:
        self._remove_task(claim.entry)
        complete(self, claim, witness, **options)

    SlotLog.complete = broken  # type: ignore[method-assign]


def blind_ack() -> None:
    """An ack that looks neither at the time nor at slot g+1: a superseded lease completes the task."""
    from dfq.slotlog import SlotLog
    from dfq.stores.disk import DiskStore

    name = DiskStore.name

    def careless(self: DiskStore, staged: int, path: str) -> bool:
        return name(self, staged, path) or path.startswith("active-leases/")

    DiskStore.name = careless  # type: ignore[method-assign]
    SlotLog._in_time = lambda self, claim, what: None  # type: ignore[method-assign]


def believes_wall_clocks() -> None:
    """Leases, delays and ages that go by the time of day alone."""
    from dfq import staleness
    from dfq.providers.filesystem import schedule
    from dfq.providers.filesystem.steady import Steadiness
    from dfq.staleness import Judge, moment

    def held_until(self: Any, slot: Any, path: str) -> float | None:
        if slot.state != "torn" and self._store.lock_is_free(path):
            return None
        found: float | None = self._by_timestamps(slot, self._clock.elapsed())
        return found

    def delay_over(record: dict[str, Any], clock: Any, machine: Any, first_seen: float) -> float:
        due = moment(record.get("due_at"))
        if due is None:
            due = (moment(record.get("released_at")) or 0.0) + float(record.get("delay_s") or 0.0)
        return float(clock.elapsed() + due - clock.wall())

    Judge.held_until = held_until  # type: ignore[method-assign]
    staleness.delay_over = delay_over
    schedule.delay_over = delay_over  # type: ignore[attr-defined]
    Steadiness.seconds = lambda self: 1e9  # type: ignore[method-assign]


def deaf() -> None:
    """An idle worker that is not told when a lease's file is closed."""
    from dfq.providers.filesystem import idle

    idle.CLOSE_WRITE = idle.DELETE  # type: ignore[attr-defined]


def ends_nothing() -> None:
    """A template that does not end what a task has started."""
    from dfq.work import guard

    def nothing(*_: Any, **__: Any) -> None:
        return None

    guard.kill_marked = guard.kill_all = guard.kill_group = nothing


SABOTAGES: dict[str, Callable[[], None]] = {
    "entry-goes-first": entry_goes_first,
    "blind-ack": blind_ack,
    "wall-clock": believes_wall_clocks,
    "deaf": deaf,
    "ends-nothing": ends_nothing,
}


def commit(name: str) -> None:
    """Break something, in this process."""
    SABOTAGES[name]()
