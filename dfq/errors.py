"""Everything that can go wrong, as one tree under QueueError."""

from __future__ import annotations


class QueueError(Exception):
    """The root of every error that dfq raises on purpose."""


class QueueUnavailable(QueueError):
    """The queue cannot be reached or written now: a full disk, a missing folder, no network."""


class TaskExists(QueueError):
    """A task with this id is already in the queue, or was completed."""

    def __init__(self, message: str, *, task_id: str | None = None, state: str | None = None) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.state = state


class TaskNotFound(QueueError):
    """There is no task with this id (in the state that the call needs)."""


class InvalidTask(QueueError):
    """A task, an id or a file that cannot be taken as it is."""


class NoTasks(QueueError):
    """Nothing to claim; only where a layout asks for an error instead of an empty list."""


class LeaseLost(QueueError):
    """The lease is no longer ours: what was done under it must not count."""


class PayloadTooLarge(QueueError):
    """A payload or a result is over max_payload."""


class Unsupported(QueueError):
    """This provider cannot do that."""


class ConfigError(QueueError):
    """A setting, its name or its value is wrong."""


class RetryLater(Exception):
    """Raise it in a handler to give the task back without counting the attempt.

    delay is in seconds; without it the queue's backoff decides.
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay
