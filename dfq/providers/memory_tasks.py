"""The tasks of a memory queue: their states and the moves between them.

Whoever calls holds `changed`; nothing in here waits or starts a thread.
"""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Literal

from dfq import codec
from dfq.errors import LeaseLost
from dfq.ports import Clock
from dfq.queue import Counts, Held, State, TaskInfo, TaskState

MAX_ERRORS = 100
EPOCH = 2**32
SILENT = 0.8  # of its time without a renewal, after which a lease is stalled: it is renewed every third of it


@dataclass(slots=True, eq=False)
class Record:
    """A task, from push until it is forgotten."""

    id: str
    body: bytes  # payload and encoding as JSON: nobody's later change to an object reaches a task
    priority: int
    created_at: str
    sequence: int
    epoch: int = 0
    generation: int = 0
    attempt: int = 0
    state: State | Literal["cancelled"] = "pending"
    moves: int = 0  # grows with each change of state: entries of heaps that are older mean nothing
    when: float = 0.0  # due, end of the lease, or end of the guard, by the state
    due_at: str | None = None
    lease: Lease | None = None
    claimed_at: str | None = None
    completed_at: str | None = None
    witness: bytes = b""  # the result
    errors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def token(self) -> int:
        return self.epoch * EPOCH + self.generation


@dataclass(frozen=True, slots=True)
class Holder:
    """A queue object that claims, and what its settings say about how a run ends."""

    worker_id: str
    max_attempts: int
    max_run: float
    retain_completed: float
    retain_failed: float
    host: str = ""


class Lease(Held):
    """Who has a task. The record's `lease` is the one that counts, until the record's `when`."""

    def __init__(self, home: Tasks, record: Record, holder: Holder, seconds: float) -> None:
        self.home = home
        self.record = record
        self.holder = holder
        self.seconds = seconds  # what a renewal adds
        self.run_end = home.clock.elapsed() + holder.max_run  # no renewal goes past this
        self.beat_at = home.clock.elapsed()
        self.over = False  # acked or given back by its holder: neither held nor lost

    @property
    def held(self) -> bool:
        """True while nobody else may have the task."""
        record = self.record
        return record.lease is self and record.state == "leased" and self.home.clock.elapsed() < record.when

    @property
    def lost(self) -> bool:  # type: ignore[override]  # asked, not told: nobody has to remember to set it
        return not self.over and not self.held


class Tasks:
    """The tasks that all queue objects of one name share."""

    def __init__(self, clock: Clock) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.paused = False
        #: Leases whose Task was dropped. Only a SimpleQueue may be filled from within the garbage collector.
        self.forgotten: SimpleQueue[Lease] = SimpleQueue()
        self.clock = clock
        self._by_id: dict[str, Record] = {}
        self._lanes: list[list[tuple[int, int, Record]]] = [[] for _ in range(10)]
        self._timers: list[tuple[float, int, int, Record]] = []
        self._counts: Counter[str] = Counter()
        self._sequence = 0

    # -- moves -------------------------------------------------------------------------------------

    def add(self, task_id: str, body: bytes, priority: int, delay: float, epoch: int = 0) -> None:
        """Put a task in, in place of one that is over if there is one."""
        self._sequence += 1
        if old := self._by_id.get(task_id):
            self._drop(old)
        record = Record(task_id, body, priority, codec.iso(self.clock.wall()), self._sequence, epoch)
        self._by_id[task_id] = record
        self._counts["pending"] += 1
        self._wait(record, delay)

    def rerun(self, record: Record, body: bytes, priority: int, delay: float) -> None:
        """Put a task that is over back as a new epoch, or a failed one as a new generation."""
        over = record.state in ("completed", "cancelled")
        generation, epoch = (0, record.epoch + 1) if over else (record.generation, record.epoch)
        self.add(record.id, body, priority, delay, epoch)
        self._by_id[record.id].generation = generation

    def claim(self, holder: Holder, seconds: float) -> Lease | None:
        """Lease the first task of the highest lane that has one."""
        for lane in reversed(self._lanes):
            while lane:
                _, moves, record = heapq.heappop(lane)
                if record.moves != moves:
                    continue
                record.generation += 1
                record.attempt += 1
                record.claimed_at = codec.iso(self.clock.wall())
                record.lease = lease = Lease(self, record, holder, seconds)
                self._move(record, "leased", self.clock.elapsed() + min(seconds, holder.max_run))
                return lease
        return None

    def renew(self, lease: Lease, extend: float | None = None) -> float:
        """Renew a lease by its own time, or let it end in `extend` seconds; return its end.

        Raises LeaseLost.
        """
        record = self.held(lease)
        lease.beat_at = self.clock.elapsed()
        end = min(lease.beat_at + (extend or lease.seconds), lease.run_end)
        if end > record.when:
            record.when = end  # the timer of the old end finds the new one when it goes off
        elif end < record.when and extend is not None:
            self._move(record, "leased", end)
        return record.when

    def held(self, lease: Lease) -> Record:
        """Return the record of a lease that is held. Raises LeaseLost."""
        if lease.held:
            return lease.record
        why = "it is over" if lease.over else f"the task is {lease.record.state} now"
        raise LeaseLost(f"the lease of task {lease.record.id[:200]!r} by {lease.holder.worker_id} is lost: {why}")

    def complete(self, lease: Lease, witness: bytes) -> None:
        """Complete a task. Raises LeaseLost."""
        record = self.held(lease)
        lease.over = True
        record.witness = witness
        self._finish(record, "completed", lease.holder.retain_completed)

    def release(self, lease: Lease, error: str | None, delay: float, *, count: bool) -> None:
        """Give a task back, or bury it if its attempts are used up. Raises LeaseLost."""
        self.held(lease)
        lease.over = True
        self._end_run(lease, error, delay, count=count)

    def retry(self, record: Record) -> None:
        """Put a failed task back with all its attempts."""
        record.attempt = 0
        record.completed_at = None
        self._wait(record, 0)

    def cancel(self, record: Record, guard: float) -> None:
        """Take a task out; its id stays taken for `guard` seconds."""
        self._finish(record, "cancelled", guard)

    def settle(self) -> float:
        """Do what time or the garbage collector has made due; return when there is more to do."""
        while True:
            try:
                lease = self.forgotten.get_nowait()
            except Empty:
                break
            if lease.held:
                self._end_run(lease, "forgotten: the task object was dropped without ack or nack", 0)
        now = self.clock.elapsed()
        while self._timers and self._timers[0][0] <= now:
            _, _, moves, record = heapq.heappop(self._timers)
            if record.moves != moves:
                continue
            if record.when > now:
                self._set_timer(record)  # a lease that was renewed since
            elif record.state == "scheduled":
                self._wait(record, 0)
            elif record.state == "leased" and record.lease is not None:
                self._end_run(record.lease, f"the lease of {record.lease.holder.worker_id} ran out", 0)
            else:
                self._drop(record)
                del self._by_id[record.id]
        return self._timers[0][0] if self._timers else float("inf")

    # -- looking -----------------------------------------------------------------------------------

    def get(self, task_id: str) -> Record | None:
        return self._by_id.get(task_id)

    def all(self) -> Iterator[Record]:
        return iter(sorted(self._by_id.values(), key=lambda record: record.sequence))

    def counts(self) -> Counts:
        c = self._counts
        return Counts(c["pending"], c["leased"], c["scheduled"], c["completed"], c["failed"])

    def info(self, record: Record) -> TaskInfo:
        """Return what is known of a task."""
        over = record.state in ("completed", "cancelled")
        leased = record.state == "leased" and record.lease is not None
        silent = self._silent_for(record)
        left = record.when - self.clock.elapsed()
        return TaskInfo(
            id=record.id,
            state="completed" if record.state == "cancelled" else record.state,
            payload=None if over else unpack(record.body, record.id),
            priority=record.priority,
            created_at=record.created_at,
            attempt=record.attempt,
            token=record.token or None,
            worker_id=record.lease.holder.worker_id if record.lease else None,
            host=record.lease.holder.host or None if record.lease and leased else None,
            due_at=record.due_at if record.state == "scheduled" else None,
            expires_in=max(0.0, left) if leased else None,
            claimed_at=record.claimed_at,
            completed_at=record.completed_at,
            result=unpack(record.witness, record.id) if record.witness else None,
            error=record.errors[-1]["error"] if record.errors else None,
            errors=tuple(dict(error) for error in record.errors),
            cancelled=record.state == "cancelled",
            stalled=None if silent is None else "no heartbeat",
            silent_since=None if silent is None else codec.iso(self.clock.wall() - silent),
            outlook=None if silent is None else f"given back in {max(1.0, left):.0f} s",
        )

    def states(self, prefix: str) -> Iterator[TaskState]:
        for record in self.all():
            if record.state != "cancelled" and record.id.startswith(prefix):
                yield TaskState(record.id, record.state, self._silent_for(record) is not None)

    # -- inside ------------------------------------------------------------------------------------

    def _silent_for(self, record: Record) -> float | None:
        """Return how long ago a lease was renewed, if that is too long: a live holder would have done so since."""
        lease = record.lease
        if record.state != "leased" or lease is None:
            return None
        silent = self.clock.elapsed() - lease.beat_at
        return silent if silent > SILENT * (record.when - lease.beat_at) else None

    def _end_run(self, lease: Lease, error: str | None, delay: float, *, count: bool = True) -> None:
        record = lease.record
        if count or error is not None:
            entry = {
                "generation": record.generation,
                "attempt": record.attempt,
                "worker_id": lease.holder.worker_id,
                "at": codec.iso(self.clock.wall()),
                "error": error or "no error was given",
            }
            record.errors = [*record.errors, entry][-MAX_ERRORS:]
        record.attempt -= not count
        if count and record.attempt >= lease.holder.max_attempts:
            record.lease = None
            self._move(record, "failed", self.clock.elapsed() + lease.holder.retain_failed)
        else:
            self._wait(record, delay)

    def _wait(self, record: Record, delay: float) -> None:
        record.lease = None
        if delay > 0:
            record.due_at = codec.iso(self.clock.wall() + delay)
            self._move(record, "scheduled", self.clock.elapsed() + delay)
        else:
            self._move(record, "pending", float("inf"))
            # Back in its old place: a task that was given back does not queue up again.
            heapq.heappush(self._lanes[record.priority], (record.sequence, record.moves, record))
            self.changed.notify_all()

    def _finish(self, record: Record, state: Literal["completed", "cancelled"], retain: float) -> None:
        record.body = b""
        record.completed_at = codec.iso(self.clock.wall())
        if state == "cancelled":
            record.lease = None  # so that its worker learns of it; a completed task shows who did it
        self._move(record, state, self.clock.elapsed() + retain)

    def _move(self, record: Record, state: State | Literal["cancelled"], when: float) -> None:
        self._counts[record.state] -= 1
        self._counts[state] += 1
        record.state, record.when = state, when
        record.moves += 1
        if when != float("inf"):
            self._set_timer(record)

    def _set_timer(self, record: Record) -> None:
        heapq.heappush(self._timers, (record.when, record.sequence, record.moves, record))

    def _drop(self, record: Record) -> None:
        self._counts[record.state] -= 1
        record.moves += 1


def pack(value: Any, encoding: str) -> bytes:
    """Return an encoded payload or result as bytes."""
    return codec.dumps({"payload": value, "encoding": encoding})


def unpack(body: bytes, task_id: str) -> Any:
    """Return what was packed, new each time."""
    where = f"task {task_id[:200]!r}"
    fields = codec.loads(body, where)
    return codec.decode_payload(fields["payload"], fields["encoding"], where)
