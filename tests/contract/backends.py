"""The providers that the contract is checked on: a row each of what they can do, and how to open one.

A new provider adds a Backend to BACKENDS (and a fixture in conftest.py if it wants a server).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import dfq

Check = TypeVar("Check", bound=Callable[..., Any])


@dataclass(frozen=True)
class Can:
    """What a provider promises beyond the verbs."""

    fifo: bool = True  # within a lane, a few tasks pushed one after the other are claimed in that order
    strict_fifo: bool = True  # also those pushed at the same moment, whatever their ids, and among thousands
    exact_counts: bool = True  # counts() is right at once
    delays: bool = True
    priorities: bool = True
    dedup: bool = True  # by id, also against what is completed
    listing: bool = True  # tasks() and get()
    dead_letters: bool = True
    forgets: bool = True  # a dropped Task comes back at once, before its lease ends
    rerun: bool = True  # if_exists="rerun" takes a completed id
    receipts: bool = False  # resume_lease()
    cross_process: bool = False  # other processes see the same tasks


@dataclass(frozen=True)
class Backend:
    name: str
    settings: dict[str, Any]
    can: Can = field(default_factory=Can)


BACKENDS = [
    Backend("memory", {"queue_type": "memory"}),
    Backend(
        "filesystem-full",
        {"queue_type": "filesystem", "durability": "full"},
        Can(receipts=True, cross_process=True, strict_fifo=False),
    ),
    Backend(
        "filesystem-fast",
        {"queue_type": "filesystem", "durability": "fast"},
        Can(receipts=True, cross_process=True, strict_fifo=False),
    ),
]
MEMORY = BACKENDS[0]


def needs(*capabilities: str) -> Callable[[Check], Check]:
    """Check this promise only on the providers that make it; not_x means those that do not."""

    def mark(check: Check) -> Check:
        check.needs = capabilities  # type: ignore[attr-defined]
        return check

    return mark


def meets(backend: Backend, capabilities: tuple[str, ...]) -> bool:
    return all(
        not getattr(backend.can, c.removeprefix("not_")) if c.startswith("not_") else getattr(backend.can, c)
        for c in capabilities
    )


class Queues:
    """Opens queues of one backend that share their tasks, and closes them at the end."""

    def __init__(self, backend: Backend, root: Path) -> None:
        self.can = backend.can
        self.root = root
        self.settings = backend.settings
        self._opened: list[dfq.QueueManager] = []

    def open(self, name: str = "q", **settings: Any) -> dfq.QueueManager:
        queue = dfq.open_queue(name, self.root, **{**self.settings, **settings})
        self._opened.append(queue)
        return queue

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()


def claim(queue: dfq.QueueManager, **options: Any) -> dfq.Task:
    """Claim one task; there must be one soon."""
    tasks = queue.poll(**{"wait": 5, **options})
    assert len(tasks) == 1, f"expected one task, got {tasks}"
    return tasks[0]


def until(condition: Callable[[], Any], within: float = 5) -> Any:
    """Wait for a condition and return it; fail if it does not come."""
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return value


def steal(queues: Queues, **settings: Any) -> tuple[dfq.QueueManager, dfq.Task, dfq.QueueManager, dfq.Task]:
    """Let one queue object lose a task to another: (loser, its task, thief, its task)."""
    loser = queues.open(lease=0.1, auto_heartbeat=False, **settings)
    thief = queues.open(lease=60, **settings)
    loser.push({"n": 1}, id="stolen")
    old = claim(loser)
    new = claim(thief)
    assert (old.id, new.id) == ("stolen", "stolen")
    return loser, old, thief, new


def run_elsewhere(queues: Queues, code: str) -> None:
    """Run code in another process that has opened the same queue as q, with a lease of ten minutes."""
    opening = f"import dfq\nq = dfq.open_queue('q', {str(queues.root)!r}, lease=600, **{queues.settings!r})\n"
    subprocess.run([sys.executable, "-c", opening + code], check=True, timeout=30)
