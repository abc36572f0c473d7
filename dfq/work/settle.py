"""The end of a task: the queue is told how it ended, as long as that takes or the task is ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dfq.errors import LeaseLost, QueueError, QueueUnavailable
from dfq.queue import Task
from dfq.work.slot import Outcome, refused

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # between attempts to reach a queue that is not there


def settle(
    task: Task,
    outcome: Outcome,
    *,
    tell: Callable[[Task, Outcome], None],
    pause: Callable[[float], bool],
    say: Callable[[str], None],
) -> Outcome:
    """Tell the queue how a task ended; return how it ended after all.

    `pause` sleeps between two attempts, and returns True if there is to be no other.
    """
    seconds, fallback = FIRST_PAUSE, False
    while outcome.kind != "lost":
        try:
            tell(task, outcome)
            break
        except LeaseLost:
            outcome = Outcome("lost", brief=f"lease lost, was {outcome.kind}")
        except (QueueUnavailable, OSError) as e:
            say(f"cannot settle a task, next attempt in {seconds:g} s: {e}")
            if pause(seconds) or task.lost:
                outcome = Outcome("lost", brief=f"the queue cannot be reached, was {outcome.kind}")
            seconds = min(2 * seconds, LONGEST_PAUSE)
        except QueueError as e:  # it does not take the result, or what goes with a failure
            if fallback:
                outcome = Outcome("lost", brief=f"cannot be settled: {e}")  # its lease ends with the task object
            elif outcome.kind == "done":
                outcome = refused(outcome, str(e))
            else:
                fallback, outcome = True, replace(outcome, error=f"{outcome.brief} ({e})", delay=None)
    return outcome
