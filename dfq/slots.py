"""The slots of a task, and the task itself, as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfq.errors import InvalidTask
from dfq.lease import READ_LIMIT, Slot, parse
from dfq.records import read_task, read_tile
from dfq.stores.disk import DiskStore
from dfq.tree import Entry, Tree


@dataclass(slots=True)
class Limits:
    """What the log must know of the queue's settings."""

    lease: float
    max_attempts: int
    max_file: int
    max_task: int | None = None  # of a file in the frontier, where that is another limit
    owned: bool = True  # False for an index: the frontier is another's, and nothing in it is changed


class Slots:
    """Reads what a slot log decides by. Nothing here changes anything."""

    def __init__(self, store: DiskStore, tree: Tree, limits: Limits) -> None:
        self._store = store
        self._tree = tree
        self._limits = limits
        self._max_task = limits.max_file if limits.max_task is None else limits.max_task
        self._parse_task = read_task if limits.owned else read_tile

    def top(self, name: str) -> Slot | None:
        """Return the highest slot of a task; None if there is none.

        A slot that cannot be read takes its attempt from the one below: an empty one never ran.
        """
        exists, slot = self._store.exists, self._tree.slot
        generation = 0
        while exists(slot(name, generation + 1)):
            generation += 1
        return self.read(name, generation) if generation else None

    def read(self, name: str, generation: int) -> Slot | None:
        """Return a slot; None if it is gone."""
        raw = self._store.read(self._tree.slot(name, generation), max(READ_LIMIT, self._limits.max_file))
        if raw is None:
            return None  # swept since: the look after the claim sorts it out
        found = parse(name, generation, raw)
        if found.state != "torn":
            return found
        return Slot(name, generation, "torn", {"attempt": self._attempt_below(found)}, raw)

    def _attempt_below(self, torn: Slot) -> int:
        ran = 0
        while torn.state == "torn":
            ran += 1 if torn.raw.strip(b"\0 \n") else 0
            if torn.generation == 1:
                return ran
            path = self._tree.slot(torn.name, torn.generation - 1)
            torn = parse(torn.name, torn.generation - 1, self._store.read(path, READ_LIMIT) or b"")
        return torn.attempt + ran

    def carries(self, path: str, secret: str, state: str | None = None) -> bool:
        """Tell whether what has this name was written by whoever knows the nonce: then the reply to a link was lost."""
        raw = self._store.read(path, self._limits.max_file)
        if not raw:
            return False
        found = parse("", 0, raw)
        return found.nonce == secret and state in (None, found.state)

    def read_task(self, entry: Entry) -> bytes | None:
        """Return the bytes of a task; None if it is gone."""
        raw = self._store.read(entry.path, self._max_task)
        if raw or self._limits.owned or raw is None:
            return raw
        facts = self._store.disk.look(entry.path)
        return raw if facts is not None and facts.regular else None  # a folder or a link by now: no task

    def parse(self, raw: bytes, entry: Entry) -> dict[str, Any]:
        """Return the task that these bytes are. Raises InvalidTask."""
        # The payload of a tile is its bytes, so one that we may not read must not pass for an empty one.
        if not raw and not self._limits.owned and (facts := self._store.disk.look(entry.path)) and facts.size:
            raise InvalidTask(f"{entry.path}: the file cannot be read: check who owns it")
        return self._parse_task(raw, entry, self._max_task)
