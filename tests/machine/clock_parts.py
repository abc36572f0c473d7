"""A process under a clock of its own that does what it is told: one JSON object a line, and one as the answer.

{"what": "push", "id": "a", "delay": 2}    {"what": "claim", "wait": 1}    {"what": "ack", "id": "a"}
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import dfq
from dfq.providers.filesystem import housekeeping

housekeeping.EVERY = 0.0  # clear up in every idle moment, not once a minute


class Servant:
    """Holds the tasks that it claimed."""

    def __init__(self, root: str) -> None:
        self._queue = dfq.open_queue("q", root, durability="fast", max_attempts=2, lease=5.0)
        self._held: dict[str, dfq.Task] = {}

    def do(self, what: str, **given: Any) -> Any:
        """Do one thing; return when it was begun and ended (on a clock that never jumps), and what came of it."""
        begun = time.monotonic()
        try:
            answer = getattr(self, f"_{what}")(**given)
        except dfq.LeaseLost:
            answer = "lost"
        return {"begun": begun, "ended": time.monotonic(), "answer": answer}

    def _push(self, id: str, delay: float = 0) -> str:
        return self._queue.push({}, id=id, delay=delay)

    def _claim(self, wait: float, lease: float = 5.0) -> list[str]:
        tasks = self._queue.poll(wait=wait, lease=lease)
        self._held |= {task.id: task for task in tasks}
        return [task.id for task in tasks]

    def _ack(self, id: str) -> str:
        self._queue.ack(self._held[id])
        return "done"

    def _nack(self, id: str, delay: float = 0, count: bool = True) -> str:
        self._queue.nack(self._held.pop(id), "again", delay, count=count)
        return "given back"

    def _state(self, id: str) -> str:
        try:
            return self._queue.get(id).state
        except dfq.TaskNotFound:
            return "gone"

    def _wall(self) -> float:
        return time.time()


def serve(root: str) -> None:
    servant = Servant(root)
    for line in sys.stdin:
        print(json.dumps(servant.do(**json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
