"""A drain: what a worker that ends with its queue still waits for."""

from __future__ import annotations

import time

RETRY_MARGIN = 0.25  # seconds after which a task that is due again can surely be claimed
GIVE_BACKS = 10  # times in a row that a task may be given back before nobody waits for it any more
OUT_OF_THE_WAY = 60.0  # seconds that such a task then waits at least, so that the drain can come to its end


class Drain:
    """Remembers the tasks that will come back: those that failed, and those that were given back uncounted."""

    def __init__(self, longest_wait: float) -> None:
        self._longest_wait = longest_wait
        self._retry_at = 0.0  # when the last task that is waited for is due
        self._given_back: dict[str, int] = {}  # how often in a row
        self.stuck: set[str] = set()  # given back so often that they are not waited for

    def delay(self, task_id: str, delay: float) -> float:
        """Return how long a task that is being given back shall wait."""
        last = self._given_back.get(task_id, 0) + 1 >= GIVE_BACKS
        return max(delay, OUT_OF_THE_WAY) if last else delay

    def gave_back(self, task_id: str, delay: float) -> None:
        """Note that a task was given back without counting."""
        self._given_back[task_id] = self._given_back.get(task_id, 0) + 1
        if self._given_back[task_id] >= GIVE_BACKS:
            self.stuck.add(task_id)
        elif delay <= self._longest_wait:  # more than that is an appointment, not a retry
            self._wait(delay)

    def failed(self, task_id: str, delay: float) -> None:
        """Note that an attempt failed and that there will be another."""
        self.ended(task_id)
        self._wait(delay)

    def ended(self, task_id: str) -> None:
        """Note that a task will not come back to us, or that an attempt was counted."""
        self._given_back.pop(task_id, None)
        self.stuck.discard(task_id)

    def seconds_left(self) -> float:
        """Return how long to wait until every task that is waited for is due; 0 or less if none is."""
        return self._retry_at - time.monotonic()

    def _wait(self, delay: float) -> None:
        self._retry_at = max(self._retry_at, time.monotonic() + delay + RETRY_MARGIN)
