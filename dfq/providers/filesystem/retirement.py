"""The end of witnesses: what they guard goes first, they go last, and nobody else is at them meanwhile (ADR 018)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from dfq.providers.filesystem.steady import Steadiness
from dfq.providers.filesystem.view import View
from dfq.slotlog import SlotLog
from dfq.stores.disk import DiskStore
from dfq.tree import COMPLETED, Tree, epoch_of, in_epoch, plain

AT_ONCE = 100  # witnesses that are held on to while they are removed


class Retirement:
    """Removes witnesses. After that their names are free, so it must be these very ones that go, and old ones."""

    def __init__(
        self, store: DiskStore, tree: Tree, log: SlotLog, view: View, steadiness: Steadiness, guard: float
    ) -> None:
        self._store = store
        self._tree = tree
        self._log = log
        self._view = view
        self._steadiness = steadiness
        self._guard = guard

    def is_old(self, path: str, retain: float) -> bool:
        """Tell whether a file is old enough to go. A listing only hints at that: the clock may be set meanwhile."""
        facts = self._store.disk.look(path)
        # In this order: a file that was written by a clock which was set since, or is now, must not pass.
        steady = self._steadiness.seconds() >= self._guard
        return facts is not None and steady and self._steadiness.wall - facts.mtime_ns / 1e9 >= retain

    def retire(self, shard: str, names: list[str], latest: Mapping[str, int], retain: float | None = None) -> None:
        """Remove the witnesses of these names, in this order; `latest` has the latest epoch of each id.

        Those that became newer, or are needed, meanwhile stay.
        """
        retain = self._guard if retain is None else retain
        for start in range(0, len(names), AT_ONCE):
            with ExitStack() as stack:
                held = _Held(self._store, self._tree, stack)
                ours = [name for name in names[start : start + AT_ONCE] if held.takes(name) and self._old(name, retain)]
                self._retire(shard, [name for name in ours if not self._is_needed(name, latest, ours)])

    def _old(self, name: str, retain: float) -> bool:
        return self.is_old(self._tree.completed(name), retain)

    def _is_needed(self, name: str, latest: Mapping[str, int], going: list[str]) -> bool:
        """Tell whether a later epoch counts from this witness, or waits for it to (ADR 017)."""
        last = in_epoch(name, latest.get(plain(name), 0))
        if epoch_of(name) and name != last:
            return False
        following = in_epoch(last, epoch_of(last) + 1)
        stays = name != last and last not in going
        return stays or self._view.is_open(following) or self._store.exists(self._tree.completed(following))

    def _retire(self, shard: str, names: list[str]) -> None:
        """Remove witnesses after all that they guard, and after that is sure not to come back."""
        if not names:
            return
        for name in names:
            self._log.sweep_slots(name, self._tree.completed(name))
            self._view.withdraw(name)
        for folder in self._view.folders(shard):
            self._store.sync_folder(folder)
        # The first epoch tells that there are others, so they must not come back without it.
        self._remove(shard, [name for name in names if epoch_of(name)])
        self._remove(shard, [name for name in names if not epoch_of(name)])

    def _remove(self, shard: str, names: list[str]) -> None:
        """Remove witnesses for good. Until that is sure, retired/ says so to whoever uses the names anew."""
        for name in names:
            self._store.name_again(self._tree.completed(name), self._tree.retired(name))
            self._store.remove(self._tree.completed(name))
        if names:
            self._store.sync_folder(f"{COMPLETED}/{shard}")
        for name in names:
            self._store.remove(self._tree.retired(name))


class _Held:
    """The witnesses that nobody but us may touch until the stack is closed."""

    def __init__(self, store: DiskStore, tree: Tree, stack: ExitStack) -> None:
        self._store = store
        self._tree = tree
        self._stack = stack
        self._known: dict[str, bool] = {}

    def takes(self, name: str) -> bool:
        """Tell whether we have a witness to ourselves, and the first of its id: who begins a new epoch holds that."""
        first = in_epoch(name, 0)
        return (self._has(first) or not self._store.exists(self._tree.completed(first))) and self._has(name)

    def _has(self, name: str) -> bool:
        if name not in self._known:
            held = self._store.standing(self._tree.completed(name), alone=True)
            self._known[name] = self._stack.enter_context(held)
        return self._known[name]


def latest_of(names: Iterable[str]) -> dict[str, int]:
    """Return the latest epoch of each id among these names."""
    latest: dict[str, int] = {}
    for name in names:
        latest[plain(name)] = max(epoch_of(name), latest.get(plain(name), 0))
    return latest
