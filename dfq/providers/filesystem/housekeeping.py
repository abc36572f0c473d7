"""Clearing up: what crashes leave behind, and what is past its retention (ADR 018).

Nothing here is needed for a task to be done, or done once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dfq.ports import Clock, Found
from dfq.providers.filesystem.retirement import Retirement, latest_of
from dfq.providers.filesystem.steady import Steadiness
from dfq.providers.filesystem.view import View
from dfq.slotlog import SlotLog
from dfq.stores.disk import DiskStore
from dfq.tree import COMPLETED, FAILED, LEASES, RETIRED, Tree, epoch_of, in_epoch, slot_name, task_name

EVERY = 60.0  # seconds between two rounds
BUDGET = 0.02  # seconds that a round may take; the next one goes on from there
TEMPORARY = 3600.0
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is kept, in seconds; None is for ever."""

    guard: float  # nothing goes earlier than this
    completed: float | None
    failed: float | None

    @classmethod
    def of(cls, lease: float, completed: float | None, failed: float | None) -> Retention:
        """Return what the settings ask for, and no less than safety does."""
        guard = max(3600.0, 10 * lease)
        return cls(
            guard,
            None if completed is None else max(completed, guard),
            None if failed is None else max(failed, guard),
        )


class Housekeeping:
    """Goes around the shards, a few at a time, once a minute."""

    def __init__(
        self,
        store: DiskStore,
        tree: Tree,
        log: SlotLog,
        view: View,
        clock: Clock,
        steadiness: Steadiness,
        retention: Retention,
        leftovers: Callable[[], list[str]] = list,
    ) -> None:
        self._store = store
        self._tree = tree
        self._log = log
        self._view = view
        self._clock = clock
        self._steadiness = steadiness
        self._retention = retention
        self._retirement = Retirement(store, tree, log, view, steadiness, retention.guard)
        self._leftovers = leftovers  # temporary files that lie elsewhere
        self._last: float | None = None
        self._left: list[str] = []  # shards of this time around
        self._young: dict[str, float] = {}  # folder of witnesses -> when (wall clock) the oldest can be removed
        self._seen: dict[str, float] = {}  # temporary file -> since when we see it

    def tidy(self, *, busy: bool = False) -> None:
        """Do a round, unless the last one is recent; a busy caller does not begin with one."""
        now = self._clock.elapsed()
        if self._last is None and busy:
            self._last = now
        if self._last is not None and now - self._last < EVERY:
            return
        self._last = now
        self._temporary(now)
        steady = self._steadiness.seconds() >= self._retention.guard
        if not self._left:
            self._left = sorted(self._shards(), reverse=True)
        while self._left:
            shard = self._left.pop()
            self._orphans(shard)
            self._letters(shard, steady)
            if steady:
                self._guards(shard)
                self._witnesses(shard)
            if self._clock.elapsed() - now > BUDGET:
                break

    def _orphans(self, shard: str) -> None:
        leases = (slot_name(f.name) for f in self._store.disk.scan(f"{LEASES}/{shard}"))
        for name in {found[0] for found in leases if found is not None}:
            # The witness forbids that the names are used anew, so removing them is safe.
            witness = self._tree.completed(name)
            if self._is_over(name):
                with self._store.standing(witness) as stands:
                    if stands:
                        self._store.sync(witness)
                        self._log.sweep_slots(name, witness)

    def _is_over(self, name: str) -> bool:
        """Tell whether a name has its witness; a folder or a link in its place proves nothing."""
        return self._is_file(self._tree.completed(name))

    def _is_file(self, path: str) -> bool:
        facts = self._store.disk.look(path) if self._store.exists(path) else None
        return facts is not None and facts.regular

    def _letters(self, shard: str, steady: bool) -> None:
        retain = self._retention.failed
        for name, found in self._files(f"{FAILED}/{shard}"):
            letter = self._tree.failed(name)
            old = steady and retain is not None and self._older(found.mtime_ns, retain)
            if self._is_over(name):
                self._store.remove(letter)
            elif not self._store.exists(self._tree.slot(name, 1)):
                # Of a task that is not dead it is only a view. Without a task it is all that is left of one.
                if old or ((entry := self._view.find(name)) is not None and self._is_file(entry.path)):
                    self._store.remove(letter)
            elif old and retain is not None and (entry := self._view.find(name)) is not None:
                self._log.expire(entry, lambda slot: self._retirement.is_old(slot, retain))

    def _guards(self, shard: str) -> None:
        old = [name for name, f in self._files(f"{RETIRED}/{shard}") if self._older(f.mtime_ns, self._retention.guard)]
        if not old:
            return
        # A crash may have left the link of an earlier witness: then the one that is there now is no stub.
        stale = [name for name in old if not self._log.is_retired(name)]
        latest = latest_of(name for name, _ in self._files(f"{COMPLETED}/{shard}"))
        # A first epoch stays for any later one, also when the one right after it is gone (ADR 017).
        later = {name for name in old if not epoch_of(name) and latest.get(name)}
        self._retirement.retire(shard, [n for n in old if n not in stale and n not in later], latest)
        for name in stale:
            self._log.unlist(name)

    def _witnesses(self, shard: str) -> None:
        folder, retain = f"{COMPLETED}/{shard}", self._retention.completed
        if retain is None or self._clock.wall() < self._young.get(folder, 0.0):
            return
        times = {name: found.mtime_ns for name, found in self._files(folder)}
        latest = latest_of(times)
        old = {name for name, mtime_ns in times.items() if self._older(mtime_ns, retain)}
        gone = sorted((name for name in old if self._may_go(name, latest, old)), key=epoch_of, reverse=True)
        self._retirement.retire(shard, gone, latest, retain)
        young = min((time for name, time in times.items() if name not in old), default=None)
        self._young[folder] = self._clock.wall() + EVERY if young is None else young / 1e9 + retain

    @staticmethod
    def _may_go(name: str, latest: dict[str, int], old: set[str]) -> bool:
        """Tell whether an old witness may go: that of the first epoch not before that of the last (ADR 017)."""
        return epoch_of(name) > 0 or in_epoch(name, latest[name]) in old

    def _temporary(self, now: float) -> None:
        # By our own clock since we first saw it: they are few, and their writer may still be at it.
        found = {f.name for f in self._store.disk.scan(".") if f.regular and f.name.startswith(".tmp-")}
        found |= {path for path in self._leftovers() if self._is_file(path)}
        self._seen = {name: self._seen.get(name, now) for name in sorted(found)[:REMEMBERED]}
        for name, first in self._seen.items():
            if now - first >= TEMPORARY:
                self._store.remove(name)

    def _older(self, mtime_ns: int, seconds: float) -> bool:
        return self._clock.wall() - mtime_ns / 1e9 >= seconds

    def _files(self, folder: str) -> list[tuple[str, Found]]:
        found = self._store.disk.scan(folder, times=True)
        return [(name, f) for f in found if f.regular and (name := task_name(f.name)) is not None]

    def _shards(self) -> set[str]:
        folders = (LEASES, FAILED, RETIRED, COMPLETED)
        listed = (f for folder in folders for f in self._store.disk.scan(folder))
        return {f.name for f in listed if f.directory and self._tree.is_shard(f.name)}
