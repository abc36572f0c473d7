"""What a caller sees: the QueueManager and the tasks it hands out.

A task's life, whatever the provider:

    push --> pending --poll--> leased --ack--> completed
               ^  ^              |
    delay      |  +----nack------+--- attempts used up --> failed --retry--> pending
    scheduled -+
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

State = Literal["pending", "leased", "scheduled", "completed", "failed"]
STATES: tuple[State, ...] = ("pending", "leased", "scheduled", "completed", "failed")
IfExists = Literal["error", "skip", "rerun"]
DEFAULT_PRIORITY = 5


class Task:
    """A claimed task. It is ours until it is acked, nacked, lost or forgotten.

    Forgetting it (dropping the last reference) ends its lease: the task comes back.
    """

    __slots__ = ("__weakref__", "_held", "attempt", "created_at", "id", "payload", "priority", "token")

    def __init__(
        self,
        *,
        id: str,
        payload: Any,
        attempt: int,
        token: int,
        created_at: str,
        priority: int = DEFAULT_PRIORITY,
        held: Held,
    ) -> None:
        self.id = id
        self.payload = payload
        self.attempt = attempt
        self.token = token
        self.created_at = created_at
        self.priority = priority
        self._held = held

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost: stop, what follows cannot be acked."""
        return self._held.lost

    @property
    def liveness_fd(self) -> int | None:
        """A descriptor that a process running this task should keep open: while it is, nobody takes over."""
        return self._held.liveness_fd

    @property
    def receipt(self) -> str:
        """A text that lets another process ack, nack or renew this very lease (where the provider can)."""
        return self._held.receipt

    def __repr__(self) -> str:
        return f"Task({self.id!r}, attempt={self.attempt}, token={self.token})"


class Held:
    """The provider's side of a claimed task: subclassed by each provider."""

    lost: bool = False
    liveness_fd: int | None = None
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class Counts:
    """How many tasks are in each state."""

    pending: int = 0
    leased: int = 0
    scheduled: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What is known of a task, for looking at: it gives no right to work on it."""

    id: str
    state: State
    payload: Any = None
    priority: int | None = None
    created_at: str | None = None
    attempt: int = 0
    token: int | None = None
    worker_id: str | None = None
    host: str | None = None  # of the worker that holds it
    due_at: str | None = None
    expires_in: float | None = None  # seconds left of the lease, where that can be known
    claimed_at: str | None = None
    completed_at: str | None = None
    result: Any = None
    error: str | None = None
    errors: Sequence[dict[str, Any]] = field(default_factory=tuple)
    cancelled: bool = False
    expired: bool = False  # a dead letter that was past its retention
    epoch: int = 0  # how often it was put back after it was over
    path: str | None = None  # where it lies (the whole path), for providers that are made of files
    stalled: str | None = None  # why, if it is leased and its holder shows no life; None if it does
    silent_since: str | None = None  # of a stalled one: the last sign of life
    outlook: str | None = None  # of a stalled one: what will happen

    @property
    def ended_without_result(self) -> bool:
        """True for a task that is over without having been done: its id may be pushed again."""
        return self.cancelled or self.expired


class TaskState(NamedTuple):
    """A task's id and state, without what it takes to know more."""

    id: str
    state: State
    stalled: bool = False  # leased, and its holder shows no life


class QueueManager(ABC):
    """A queue: a handful of verbs that every provider implements.

    Delivery is at least once, completion at most once: a task may be run again after a crash,
    but only one ack for it is ever accepted. All methods may be called from any thread.
    """

    #: What this kind of queue is called in `queue_type`.
    queue_type: str = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self._interrupted = threading.Event()
        self._closed = False

    # -- the verbs ---------------------------------------------------------------------------------

    @abstractmethod
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
        """Add a task and return its id; once this returns, the task is safe.

        payload is a mapping, dataclass, pydantic model, str or bytes. priority is 0 to 9, 9 first.
        With if_exists="skip", on_skip is called with an id that was there already.
        Raises TaskExists (see if_exists), InvalidTask, PayloadTooLarge, QueueUnavailable.
        """

    def push_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int = DEFAULT_PRIORITY,
        delay: float = 0,
        if_exists: IfExists = "error",
        on_skip: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Add many tasks and return their ids in order. An item is a payload, or a Push with its own id."""
        from dfq.checks import check_many

        return [
            self.push(p.payload, id=p.id, priority=p.priority, delay=p.delay, if_exists=if_exists, on_skip=on_skip)
            for p in (as_push(item, priority, delay) for item in check_many(payloads, "push_many", "push"))
        ]

    @abstractmethod
    def poll(self, batch_size: int = 1, *, wait: float = 0, lease: float | None = None) -> list[Task]:
        """Claim up to batch_size tasks, waiting up to `wait` seconds for the first; [] if there is none."""

    @abstractmethod
    def ack(self, task: Task, result: Any = None) -> None:
        """Complete a task. Raises LeaseLost if it is no longer ours; then nothing was recorded."""

    def ack_many(self, tasks: Iterable[Task], result: Any = None) -> None:
        """Complete many tasks; raises LeaseLost for the first that was lost after acking all the others."""
        from dfq.checks import check_many
        from dfq.errors import LeaseLost

        lost: LeaseLost | None = None
        for task in check_many(tasks, "ack_many", "ack"):
            try:
                self.ack(task, result)
            except LeaseLost as e:
                lost = lost or e
        if lost is not None:
            raise lost

    @abstractmethod
    def nack(self, task: Task, error: str | None = None, delay: float = 0, *, count: bool = True) -> None:
        """Give a task back, due after `delay` seconds; a dead letter once its attempts are used up.

        count=False gives it back as if this attempt had not been made.
        """

    @abstractmethod
    def heartbeat(self, task: Task, extend: float | None = None) -> None:
        """Renew a lease (for `extend` seconds instead of its own time). Raises LeaseLost."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held, without counting the attempt, and free everything. May be called twice."""

    # -- looking and acting ------------------------------------------------------------------------

    @abstractmethod
    def counts(self) -> Counts:
        """Return how many tasks are in each state."""

    @abstractmethod
    def tasks(self, state: State | None = None, *, limit: int | None = None) -> Iterator[TaskInfo]:
        """Iterate over the tasks in a state, or in all of them."""

    def states(self, prefix: str = "") -> Iterator[TaskState]:
        """Iterate over the ids with a prefix and the state of each: no payload is read where that can be helped."""
        for info in self.tasks():
            if info.id.startswith(prefix):
                yield TaskState(info.id, info.state, info.stalled is not None)

    @abstractmethod
    def get(self, task_id: str) -> TaskInfo:
        """Return what is known of a task. Raises TaskNotFound."""

    @abstractmethod
    def retry(self, task_ids: str | Iterable[str] | None = None) -> list[str]:
        """Put failed tasks (all of them, if none is named) back with all their attempts; return their ids.

        Raises TaskNotFound for an id that is not failed.
        """

    @abstractmethod
    def cancel(self, task_ids: str | Iterable[str]) -> list[str]:
        """Take tasks that are not completed out of the queue; a worker on one gets LeaseLost."""

    @abstractmethod
    def pause(self) -> None:
        """Hand out no more tasks, in any process, until resume()."""

    @abstractmethod
    def resume(self) -> None:
        """Hand out tasks again."""

    @property
    @abstractmethod
    def paused(self) -> bool:
        """True while the queue is paused."""

    @abstractmethod
    def purge(self) -> int:
        """Cancel everything that is not completed; return how many tasks that were."""

    # -- common to all -----------------------------------------------------------------------------

    def resume_lease(self, receipt: str) -> Task:
        """Take up a lease again from its receipt, in another process (see Task.receipt). Raises LeaseLost."""
        from dfq.errors import Unsupported

        raise Unsupported(f"{self.queue_type} leases cannot be taken up from a receipt")

    def interrupt(self) -> None:
        """Make a poll that is waiting in another thread (or under a signal handler) return at once.

        The interrupt sticks: every later poll returns without waiting.
        """
        self._interrupted.set()
        self._wake()

    def _wake(self) -> None:  # noqa: B027 - not every provider can be woken
        """Wake a waiting poll; providers that can be woken override this."""

    def _check_open(self) -> None:
        """Raise QueueUnavailable once the queue was closed."""
        if self._closed:
            from dfq.errors import QueueUnavailable

            raise QueueUnavailable(f"queue {self.name!r} is closed: open it again")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Push:
    """An item for push_many that carries its own id, priority or delay."""

    payload: Any
    id: str | None = None
    priority: int = DEFAULT_PRIORITY
    delay: float = 0


def as_push(item: Any, priority: int, delay: float) -> Push:
    """Return an item of push_many as a Push."""
    return item if isinstance(item, Push) else Push(item, None, priority, delay)
