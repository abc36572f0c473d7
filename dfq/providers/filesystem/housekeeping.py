"""Clearing up what crashes leave behind. Nothing here is needed for a task to be done, or done once."""

from __future__ import annotations

from dfq.ports import Clock
from dfq.slotlog import SlotLog
from dfq.stores.disk import DiskStore
from dfq.tree import FAILED, LEASES, RETIRED, Tree, slot_name, task_name

EVERY = 60.0
TEMPORARY = 3600.0
REMEMBERED = 10_000


class Housekeeping:
    """Sweeps, now and then while idle: orphaned slots, dead letters that are none, names that may be used again."""

    def __init__(self, store: DiskStore, tree: Tree, log: SlotLog, clock: Clock, *, keep: float) -> None:
        self._store = store
        self._tree = tree
        self._log = log
        self._clock = clock
        self._keep = keep
        self._last = -EVERY
        self._seen: dict[str, float] = {}  # what may be removed later -> since when we see it

    def tidy(self) -> None:
        """Do one round, unless the last one is recent."""
        now = self._clock.elapsed()
        if now - self._last < EVERY:
            return
        self._last = now
        self._orphans()
        self._letters()
        self._guards(now)
        self._temporary(now)

    def _orphans(self) -> None:
        for shard in self._shards(LEASES):
            leases = (slot_name(f.name) for f in self._store.disk.scan(f"{LEASES}/{shard}"))
            for name in {found[0] for found in leases if found is not None}:
                # The witness forbids that the names are used anew, so removing them is safe.
                if self._store.exists(self._tree.completed(name)):
                    self._store.sync(self._tree.completed(name))
                    self._log.sweep_slots(name)

    def _letters(self) -> None:
        for shard in self._shards(FAILED):
            for found in self._store.disk.scan(f"{FAILED}/{shard}"):
                name = task_name(found.name)
                if name is None or not found.regular:
                    continue
                over = self._store.exists(self._tree.completed(name))
                if over or not self._store.exists(self._tree.slot(name, 1)):
                    self._store.remove(self._tree.failed(name))

    def _guards(self, now: float) -> None:
        # Age by our own clock since we first saw it: a wall clock that jumps must not free a name early.
        for shard in self._shards(RETIRED):
            for found in self._store.disk.scan(f"{RETIRED}/{shard}"):
                name = task_name(found.name)
                path = f"{RETIRED}/{shard}/{found.name}"
                if name is None or not self._old(path, now, self._keep):
                    continue
                self._log.sweep_slots(name)
                self._store.remove(self._tree.completed(name))
                self._store.remove(path)

    def _temporary(self, now: float) -> None:
        for found in self._store.disk.scan("."):
            if found.regular and found.name.startswith(".tmp-") and self._old(found.name, now, TEMPORARY):
                self._store.remove(found.name)

    def _old(self, path: str, now: float, age: float) -> bool:
        first = self._seen.get(path)
        if first is None:
            if len(self._seen) < REMEMBERED:
                self._seen[path] = now
            return False
        if now - first < age:
            return False
        del self._seen[path]
        return True

    def _shards(self, folder: str) -> list[str]:
        return [f.name for f in self._store.disk.scan(folder) if f.directory and self._tree.is_shard(f.name)]
