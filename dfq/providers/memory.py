"""A queue in the memory of one process: for threads, for tests, and the plainest reading of the contract."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Self

from dfq import checks, codec
from dfq.config import Settings
from dfq.errors import InvalidTask, LeaseLost, TaskExists, TaskNotFound
from dfq.names import check_queue_name
from dfq.ports import Machine, SystemClock
from dfq.providers.memory_tasks import Holder, Lease, Record, Tasks, pack, unpack
from dfq.queue import DEFAULT_PRIORITY, Counts, IfExists, QueueManager, State, Task, TaskInfo, TaskState

BEATS_PER_LEASE = 3
MIN_GUARD = 3600.0  # a task that is over guards its id at least this long, as in a queue of files
MAX_SLEEP = 0.5  # an interrupt from a signal handler may slip in just before a wait; it is noticed after this

_CLOCK = SystemClock()
_shared: dict[tuple[str, str], Tasks] = {}
_shared_lock = threading.Lock()


class MemoryQueue(QueueManager):
    """A queue whose tasks live as long as the process; all objects of one name and root share them."""

    queue_type = "memory"

    def __init__(self, name: str, settings: Settings, tasks: Tasks) -> None:
        super().__init__(name)
        self._settings = settings
        self._tasks = tasks
        self._guard = max(MIN_GUARD, 10 * settings.lease)
        machine = Machine.this()
        self._holder = Holder(
            machine.worker_id,
            settings.max_attempts,
            float("inf") if settings.max_run is None else settings.max_run,
            max(self._guard, settings.retain_completed),
            settings.retain_failed,
            machine.host,
        )
        self._renewer = _Renewer(tasks)
        weakref.finalize(self, self._renewer.stop)

    @classmethod
    def open(cls, name: str, settings: Settings) -> Self:
        """Open the queue of this name; it is new if nobody in this process has opened it before."""
        key = (str(settings.root), check_queue_name(name))
        with _shared_lock:
            tasks = _shared.setdefault(key, Tasks(_CLOCK))
        return cls(name, settings, tasks)

    # -- the verbs ---------------------------------------------------------------------------------

    def push(
        self,
        payload: Any,
        *,
        id: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        delay: float = 0,
        if_exists: IfExists = "error",
        on_skip: Callable[[str], None] | None = None,
    ) -> str:
        priority, delay = checks.check_priority(priority), checks.check_delay(delay)
        if_exists = checks.check_if_exists(if_exists)
        task_id = codec.new_id() if id is None else checks.check_id(id)
        body = pack(*codec.encode_payload(payload, self._settings.max_payload))
        left = False
        with self._tasks.changed:
            self._settle()
            record = self._tasks.get(task_id)
            if record is None:
                self._tasks.add(task_id, body, priority, delay)
            elif record.state == "cancelled" or (if_exists == "rerun" and record.state in ("completed", "failed")):
                self._tasks.rerun(record, body, priority, delay)
            elif if_exists != "skip":
                raise _exists(record)
            else:
                left = True
            self._tasks.changed.notify_all()  # a waiting poll may have to wake earlier than it planned
        if left and on_skip is not None:
            on_skip(task_id)
        return task_id

    def poll(self, batch_size: int = 1, *, wait: float = 0, lease: float | None = None) -> list[Task]:
        batch_size, wait = checks.check_batch(batch_size), checks.check_wait(wait)
        lease_s = self._settings.lease if lease is None else checks.check_lease(lease)
        end = _CLOCK.elapsed() + wait
        with self._tasks.changed:
            while True:
                due = self._settle()
                claimed = [] if self._tasks.paused else self._claim(batch_size, lease_s)
                now = _CLOCK.elapsed()
                if claimed or now >= end or self._interrupted.is_set():
                    return claimed
                self._tasks.changed.wait(min(end - now, max(0.0, due - now), MAX_SLEEP))
                if self._closed:
                    return []

    def ack(self, task: Task, result: Any = None) -> None:
        lease = self._lease_of(task, "ack")
        witness = pack(*codec.encode_result(result, self._settings.max_payload))
        with self._tasks.changed:
            self._tasks.complete(lease, witness)
            self._renewer.forget(lease)

    def nack(self, task: Task, error: str | None = None, delay: float = 0, *, count: bool = True) -> None:
        lease = self._lease_of(task, "nack")
        error, delay = checks.check_error(error), checks.check_delay(delay)
        with self._tasks.changed:
            self._tasks.release(lease, error, delay, count=count)
            self._renewer.forget(lease)
            self._tasks.changed.notify_all()

    def heartbeat(self, task: Task, extend: float | None = None) -> None:
        lease = self._lease_of(task, "heartbeat")
        extend = None if extend is None else checks.check_lease(extend, "extend")
        with self._tasks.changed:
            self._renewer.renew(lease, extend)

    def close(self) -> None:
        with self._tasks.changed:
            if self._closed:
                return
            self._closed = True
            for lease in self._renewer.held():
                if lease.held:
                    self._tasks.release(lease, None, 0, count=False)
            self._tasks.changed.notify_all()
        self._renewer.stop()

    # -- looking and acting ------------------------------------------------------------------------

    def counts(self) -> Counts:
        with self._tasks.changed:
            self._settle()
            return self._tasks.counts()

    def tasks(self, state: State | None = None, *, limit: int | None = None) -> Iterator[TaskInfo]:
        state, limit = checks.check_state(state), checks.check_limit(limit)
        with self._tasks.changed:
            self._settle()
            found = [
                self._tasks.info(record)
                for record in self._tasks.all()
                if (record.state == state if state else record.state != "cancelled")
            ]
        return iter(found[:limit])

    def states(self, prefix: str = "") -> Iterator[TaskState]:
        with self._tasks.changed:
            self._settle()
            found = list(self._tasks.states(prefix))
        return iter(found)

    def get(self, task_id: str) -> TaskInfo:
        with self._tasks.changed:
            self._settle()
            return self._tasks.info(self._find(checks.check_id(task_id)))

    def retry(self, task_ids: str | Iterable[str] | None = None) -> list[str]:
        with self._tasks.changed:
            self._settle()
            if task_ids is None:
                records = [record for record in self._tasks.all() if record.state == "failed"]
            else:
                records = [self._find(task_id) for task_id in checks.check_ids(task_ids)]
            for record in records:
                if record.state != "failed":
                    raise TaskNotFound(f"task {record.id[:200]!r} is {record.state}: only a failed one is retried")
            for record in records:
                self._tasks.retry(record)
            return [record.id for record in records]

    def cancel(self, task_ids: str | Iterable[str]) -> list[str]:
        with self._tasks.changed:
            self._settle()
            records = [self._find(task_id) for task_id in checks.check_ids(task_ids)]
            for record in records:
                if record.state in ("completed", "cancelled"):
                    raise TaskNotFound(f"task {record.id[:200]!r} is {record.state}: there is nothing to cancel")
            for record in records:
                self._tasks.cancel(record, self._guard)
            return [record.id for record in records]

    def pause(self) -> None:
        self._set_paused(True)

    def resume(self) -> None:
        self._set_paused(False)

    @property
    def paused(self) -> bool:
        self._check_open()
        return self._tasks.paused

    def purge(self) -> int:
        with self._tasks.changed:
            self._settle()
            left = [r for r in self._tasks.all() if r.state not in ("completed", "cancelled")]
            for record in left:
                self._tasks.cancel(record, self._guard)
            return len(left)

    # -- inside ------------------------------------------------------------------------------------

    def _claim(self, batch_size: int, seconds: float) -> list[Task]:
        claimed: list[Task] = []
        while len(claimed) < batch_size and (lease := self._tasks.claim(self._holder, seconds)):
            record = lease.record
            task = Task(
                id=record.id,
                payload=unpack(record.body, record.id),
                attempt=record.attempt,
                token=record.token,
                created_at=record.created_at,
                priority=record.priority,
                held=lease,
            )
            self._renewer.watch(task, lease, renew=self._settings.auto_heartbeat)
            claimed.append(task)
        return claimed

    def _settle(self) -> float:
        self._check_open()
        return self._tasks.settle()

    def _find(self, task_id: str) -> Record:
        record = self._tasks.get(task_id)
        if record is None:
            raise TaskNotFound(f"there is no task {task_id[:200]!r} in queue {self.name!r}")
        return record

    def _lease_of(self, task: Task, verb: str) -> Lease:
        lease = checks.check_task(task, verb)._held
        if not isinstance(lease, Lease) or lease.home is not self._tasks:
            raise InvalidTask(f"task {task.id[:200]!r} was not claimed from queue {self.name!r}")
        return lease

    def _set_paused(self, paused: bool) -> None:
        with self._tasks.changed:
            self._settle()
            self._tasks.paused = paused
            self._tasks.changed.notify_all()

    def _wake(self) -> None:
        with self._tasks.changed:
            self._tasks.changed.notify_all()


def _exists(record: Record) -> TaskExists:
    what = {
        "completed": 'was completed; if_exists="rerun" runs it again',
        "failed": 'has failed; retry it, or push with if_exists="rerun"',
        "cancelled": "was cancelled, and its id cannot be used again yet",
    }.get(record.state, f"is {record.state}")
    return TaskExists(f"task {record.id[:200]!r} {what}", task_id=record.id, state=record.state)


class _Renewer:
    """Keeps the leases of one queue object alive from a thread, and ends those whose Task was dropped."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        #: What is held, under tasks.changed. The reference is kept, or its callback would never come.
        self._watched: dict[Lease, weakref.ref[Task]] = {}
        self._next_beat: dict[Lease, float] = {}
        #: True: look again; False: stop. Filled from weakref callbacks, which only a SimpleQueue allows.
        self._signals: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch(self, task: Task, lease: Lease, *, renew: bool) -> None:
        """Notice when a task is dropped, and until then renew its lease (if renew)."""
        self._watched[lease] = weakref.ref(task, _dropped(lease, self._tasks.forgotten, self._signals))
        if renew:
            self._plan(lease, lease.record.when)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dfq-memory-renewer", daemon=True)
            self._thread.start()

    def renew(self, lease: Lease, extend: float | None = None) -> None:
        """Renew one lease by its own time, or let it end in `extend` seconds. Raises LeaseLost."""
        end = self._tasks.renew(lease, extend)
        if lease in self._next_beat:
            self._plan(lease, end)

    def forget(self, lease: Lease) -> None:
        """Stop watching a lease that is over."""
        self._watched.pop(lease, None)
        self._next_beat.pop(lease, None)

    def held(self) -> list[Lease]:
        """Return the leases that are watched."""
        return list(self._watched)

    def stop(self) -> None:
        """End the thread."""
        self._signals.put(False)

    def _plan(self, lease: Lease, end: float) -> None:
        now = _CLOCK.elapsed()
        self._next_beat[lease] = now + min(lease.seconds, max(0.0, end - now)) / BEATS_PER_LEASE
        self._signals.put(True)

    def _run(self) -> None:
        pause: float | None = None
        while True:
            try:
                if not self._signals.get(timeout=pause):
                    return
            except Empty:
                pass
            with self._tasks.changed:
                pause = self._beat()

    def _beat(self) -> float | None:
        """Renew what is due; return the seconds until there is more to do, None if that is never."""
        self._tasks.settle()
        for lease in [lease for lease in self._watched if not lease.held]:
            self.forget(lease)
        now = _CLOCK.elapsed()
        for lease in [lease for lease, at in self._next_beat.items() if at <= now]:
            try:
                end = self._tasks.renew(lease)
            except LeaseLost:  # its time ran out a moment ago
                self.forget(lease)
                continue
            if end >= lease.run_end:
                del self._next_beat[lease]  # the last renewal: max_run ends it
            else:
                self._next_beat[lease] = now + lease.seconds / BEATS_PER_LEASE
        first = min(self._next_beat.values(), default=None)
        return None if first is None else max(0.0, first - now)


def _dropped(
    lease: Lease, forgotten: SimpleQueue[Lease], signals: SimpleQueue[bool]
) -> Callable[[weakref.ref[Task]], None]:
    def dropped(_: weakref.ref[Task]) -> None:
        forgotten.put(lease)
        signals.put(True)

    return dropped
