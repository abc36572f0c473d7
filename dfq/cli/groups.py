"""Tasks counted in groups, by the beginning of their ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dfq.queue import TaskState

COLUMNS = ("done", "active", "stalled", "pending", "scheduled", "failed")
_COLUMN = {"completed": 0, "leased": 1, "pending": 3, "scheduled": 4, "failed": 5}
_STALLED = 2
_OFTEN_EMPTY = (4, 5)  # columns that are left out on a terminal if there is nothing in them
MAX_GROUPS = 100_000  # kept in memory; what is beyond is counted as one


def group_of(task_id: str, prefix: str, depth: int) -> str:
    """Return the group of an id that begins with prefix: the id up to the depth-th slash after it.

    A group that ends with a slash holds what is under it, and is the prefix to look at that with. One that does
    not is a task's own id.
    """
    end = len(prefix)
    for _ in range(depth):
        slash = task_id.find("/", end)
        if slash < 0:
            return task_id
        end = slash + 1
    return task_id[:end]


@dataclass
class Groups:
    """How many tasks of each group are in each state."""

    prefix: str
    depth: int = 1
    total: list[int] = field(default_factory=lambda: [0] * len(COLUMNS))
    others: list[int] = field(default_factory=lambda: [0] * len(COLUMNS))  # of the groups beyond MAX_GROUPS
    _tally: dict[str, list[int]] = field(default_factory=dict)

    def count(self, tasks: Iterable[TaskState]) -> Groups:
        """Count tasks whose ids begin with the prefix, and return these groups."""
        tally, total = self._tally, self.total
        for task_id, state, stalled in tasks:
            name = group_of(task_id, self.prefix, self.depth)
            row = tally.get(name)
            if row is None:
                row = [0] * len(COLUMNS) if len(tally) < MAX_GROUPS else self.others
                if row is not self.others:
                    tally[name] = row
            column = _STALLED if stalled else _COLUMN[state]
            row[column] += 1
            total[column] += 1
        return self

    def __len__(self) -> int:
        return len(self._tally)

    def rows(self) -> list[tuple[str | None, list[int]]]:
        """Return the groups by name, then (as None) what was too much to tell apart."""
        rows: list[tuple[str | None, list[int]]] = [(name, self._tally[name]) for name in sorted(self._tally)]
        return [*rows, (None, self.others)] if any(self.others) else rows

    def objects(self) -> list[dict[str, Any]]:
        """Return the groups as they are printed with --json."""
        return [{"group": name, **dict(zip(COLUMNS, row, strict=True))} for name, row in self.rows()]

    def shown(self) -> list[int]:
        """Return the columns that a person wants to see."""
        return [n for n in range(len(COLUMNS)) if n not in _OFTEN_EMPTY or self.total[n]]
