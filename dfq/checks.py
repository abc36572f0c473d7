"""What callers hand in, checked in one place: each function returns the value as it is used, or raises.

What belongs to a task (priority, delay, id) raises InvalidTask; how a call is made (batch_size, wait, lease)
raises ConfigError.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast, get_args

from dfq.errors import ConfigError, InvalidTask, QueueError
from dfq.names import encode
from dfq.queue import STATES, IfExists, Push, State, Task
from dfq.values import shown

MAX_BATCH = 10_000
MAX_DELAY = 10 * 365 * 86_400.0
MIN_LEASE = 0.05
MAX_LEASE = 30 * 86_400.0
MAX_WAIT = MAX_DELAY


def check_id(task_id: Any) -> str:
    """Return a task id that can have a file name, whatever the provider: a queue can then be moved."""
    encode(task_id)
    return cast(str, task_id)


def check_ids(task_ids: str | Iterable[str]) -> list[str]:
    """Return one id or many as a list, each of them once and in order."""
    if isinstance(task_ids, bytes):
        raise InvalidTask("a task id is text, not bytes")
    if not isinstance(task_ids, Iterable):
        raise InvalidTask(f"a task id is text, not {type(task_ids).__name__}")
    ids = [task_ids] if isinstance(task_ids, str) else list(task_ids)
    return list(dict.fromkeys(check_id(task_id) for task_id in ids))


def check_task(task: Any, verb: str) -> Task:
    """Return a task that a poll may have handed out."""
    if not isinstance(task, Task):
        raise InvalidTask(f"{verb} takes a task from poll(), not {_kind(task)}")
    return task


def check_many(items: Any, verb: str, one: str) -> Iterable[Any]:
    """Return what a verb for many takes. A text, a mapping or a model can be iterated over too, but is one payload."""
    single = isinstance(items, str | bytes | bytearray | memoryview | Mapping | Push | Task)
    if single or hasattr(items, "model_dump") or not isinstance(items, Iterable):
        raise InvalidTask(f"{verb} takes many, such as a list, not {_kind(items)}: for one, use {one}")
    return items


def _kind(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def check_priority(priority: Any) -> int:
    """Return a priority: a whole number, 0 to 9."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise InvalidTask(f"priority {shown(priority)}: it must be a whole number from 0 to 9; 9 is served first")
    return priority


def check_delay(delay: Any) -> float:
    """Return a delay in seconds, 0 to ten years."""
    return _seconds(delay, "delay", 0, MAX_DELAY, InvalidTask)


def check_error(error: Any) -> str | None:
    """Return the error of a nack: text, or None. Text that is not valid Unicode is made so."""
    if error is None:
        return None
    if not isinstance(error, str):
        raise InvalidTask(f"error is a {type(error).__name__}: it must be text, such as str(error)")
    return error.encode(errors="replace").decode()


def check_batch(batch_size: Any) -> int:
    """Return how many tasks a poll may claim, 1 to 10,000."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or not 1 <= batch_size <= MAX_BATCH:
        raise ConfigError(f"batch_size {shown(batch_size)}: it must be a whole number from 1 to {MAX_BATCH:,}")
    return batch_size


def check_wait(wait: Any) -> float:
    """Return how long a poll may wait, in seconds."""
    return _seconds(wait, "wait", 0, MAX_WAIT, ConfigError)


def check_lease(lease: Any, what: str = "lease") -> float:
    """Return how long a lease lasts, in seconds: 0.05 s to 30 days."""
    return _seconds(lease, what, MIN_LEASE, MAX_LEASE, ConfigError)


def check_if_exists(if_exists: Any) -> IfExists:
    """Return what a push does about an id that is taken."""
    return cast(IfExists, _one_of(if_exists, "if_exists", get_args(IfExists)))


def check_state(state: Any) -> State | None:
    """Return a state to list, or None for all of them."""
    return None if state is None else cast(State, _one_of(state, "state", STATES))


def check_limit(limit: Any) -> int | None:
    """Return how many tasks to list at most, or None for all of them."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ConfigError(f"limit {shown(limit)}: it must be a whole number that is not negative")
    return limit


def _one_of(value: Any, what: str, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{what} {shown(value)}: it must be one of {', '.join(known)}")
    return value


def _seconds(value: Any, what: str, low: float, high: float, error: type[QueueError]) -> float:
    # A bool is an int to Python; delay=True is a mistake all the same. NaN fails every comparison.
    if not isinstance(value, bool) and isinstance(value, int | float) and low <= value <= high:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    raise error(f"{what} {shown(value)}: it must be a number of seconds from {low:g} to {high:,.0f}")
