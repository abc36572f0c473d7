"""The scan and the look of a queue whose frontier is an index (ADR 019)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dfq.lease import Slot
from dfq.ports import Clock, Disk
from dfq.providers.filesystem.foldertime import NEVER
from dfq.providers.filesystem.frontier import DEAD_AT_ONCE, DEAD_PAUSE, Frontier, Lane, Shard
from dfq.providers.filesystem.tiles import TILES, IndexTree, Tiles, is_tile
from dfq.providers.filesystem.view import View
from dfq.queue import DEFAULT_PRIORITY, State, TaskInfo
from dfq.tree import LEASES, Entry, epoch_of, id_of, in_epoch, parent, slot_name

ALWAYS = 512  # folders whose times are looked at whenever there is nothing to try
SHARE = 20  # beyond that, looking takes at most this part of the time
AT_A_TIME = 4096  # candidates from one folder


class IndexFrontier(Frontier):
    """Keeps a scan of the tree: a folder is read when it changed, when something in it comes due, and slowly again."""

    def __init__(self, disk: Disk, tree: IndexTree, clock: Clock, where: str, tiles: Tiles) -> None:
        super().__init__(disk, tree, clock, where)
        self._index = tree
        self._tiles = tiles
        self._walk_at = -NEVER  # when to look at the times of all folders again

    def unblock(self, name: str) -> bool:
        path = id_of(name)
        if path is None or not is_tile(path):
            return False
        entry, lane = self._index.tile(path, epoch_of(name)), self._lane(DEFAULT_PRIORITY)
        shard = lane.shards.get(parent(entry.path))
        if shard is None or not shard.drop(name):
            return False
        self._held.pop(entry, None)
        lane.buffer.appendleft(entry)
        return True

    def noticed(self, folder: str, filename: str) -> None:
        shard = self._lane(DEFAULT_PRIORITY).shards.get(folder)
        if shard is not None:
            shard.time.doubt()
        self._walk_at = -NEVER
        self.arrived(DEFAULT_PRIORITY)

    def look_everywhere(self) -> None:
        super().look_everywhere()
        self._walk_at = -NEVER

    def folders(self) -> list[str]:
        return list(self._lane(DEFAULT_PRIORITY).shards)

    def _known_lanes(self, thorough: bool) -> list[Lane]:
        lane = self._lane(DEFAULT_PRIORITY)
        lane.shards.setdefault(TILES, Shard("", TILES))
        return [lane]

    def _refill(self, lane: Lane, thorough: bool) -> bool:
        began = self._clock.elapsed()
        if began < self._walk_at and lane.next_due() > began:
            return False
        known = -1
        found = False
        while not found and len(lane.shards) != known:  # folders that were found on the way are looked at as well
            known = len(lane.shards)
            found = super()._refill(lane, thorough=True)
        if not found and len(lane.shards) > ALWAYS:
            took = self._clock.elapsed() - began
            self._walk_at = began + SHARE * took
        return found

    def _list_shards(self, lane: Lane, thorough: bool) -> None:
        """Nothing to list: folders are found where they lie."""

    def _read(self, lane: Lane, shard: Shard, now: float) -> list[tuple[int, Entry]]:
        facts = self._disk.look(shard.path)
        if facts is None or not facts.directory:
            if shard.path != TILES:
                del lane.shards[shard.path]
            elif facts is None:
                raise FileNotFoundError(2, "the folder of the frontier is gone", shard.path)
            return []
        if shard.time.tells(facts) and shard.blocked.soonest() > now:
            return []
        at, wall = self._clock.elapsed(), self._clock.wall()
        found = self._tiles.read(shard.path)
        for folder in found.folders:
            lane.shards.setdefault(folder, Shard("", folder))
        for name in found.strange:
            self._note(shard.path, name)
        shard.keep({entry.name for _, entry in found.due})
        due = [(time, entry) for time, entry in found.due if not shard.waits(entry.name, now)]
        shard.time.was_read(facts, at, wall, self._disk)
        if len(due) > AT_A_TIME:
            due = due[:AT_A_TIME]
            shard.time.doubt()
        for _, entry in due:
            shard.blocked.drop(entry.name)
        return due

    def _look_at_dead(self) -> None:
        now = self._clock.elapsed()
        if now < self._dead_due:
            return
        self._dead_due = now + DEAD_PAUSE
        dead = [name for shard in self._lane(DEFAULT_PRIORITY).shards.values() for name in shard.dead]
        for name in dead[:DEAD_AT_ONCE]:
            if not self._disk.exists(self._tree.failed(name)):
                self.unblock(name)

    def _shard(self, entry: Entry) -> Shard:
        lane, path = self._lane(entry.lane), parent(entry.path)
        return lane.shards.setdefault(path, Shard("", path))


class IndexView(View):
    """Looks at an index: pending = frontier - completed - failed."""

    def __init__(self, *parts: Any, tiles: Tiles, max_payload: int) -> None:
        super().__init__(*parts)
        self._tiles = tiles
        self._max_payload = max_payload

    def current(self, name: str) -> str:
        path = id_of(name)
        if path is None or not is_tile(path):
            return name
        entry = self._tiles.current(path)
        return in_epoch(name, 0) if entry is None else entry.name

    def is_open(self, name: str) -> bool:
        # Asked by those who would retire the witness of the epoch before: not until the completed tree shows it.
        path = id_of(name)
        return path is not None and is_tile(path) and self._tiles.shown_epoch(path) < epoch_of(name) - 1

    def places(self, name: str) -> Iterator[Entry]:
        path = id_of(name)
        if path is not None and is_tile(path):
            entry = self._tree.entry(name, DEFAULT_PRIORITY)
            with contextlib.suppress(NotADirectoryError):  # the path leads through a file
                if self._store.exists(entry.path):
                    yield entry

    def _witness(self, name: str) -> TaskInfo | None:
        try:
            return super()._witness(name)
        except NotADirectoryError:  # a file stands where its folder would
            return None

    def withdraw(self, name: str) -> None:
        """Leave everything: the files are another's."""

    def folders(self, shard: str) -> list[str]:
        return [f"{LEASES}/{shard}"]

    def _open_tasks(self, *, slots_only: bool = False) -> Iterator[tuple[Entry, State, Slot | None]]:
        leased = {
            lease[0]
            for shard in self._shards(LEASES)
            for found in self._disk.scan(f"{LEASES}/{shard}")
            if (lease := slot_name(found.name)) is not None
        }
        for folder in self._walk(TILES):
            for _, entry in sorted(self._tiles.read(folder).due, key=lambda item: item[1].name):
                held = entry.name in leased
                if held or not slots_only:
                    slot = self._log.top(entry.name) if held else None
                    yield entry, self._state(slot), slot

    def _completed(self, again: set[str]) -> Iterator[str]:
        for folder in self._walk(TILES):
            for path in sorted(self._tiles.read(folder).done):
                yield self._tree.tile(path).name  # type: ignore[attr-defined]

    def _put_back(self) -> set[str]:
        return set()

    def _walk(self, top: str) -> Iterator[str]:
        folders = [top]
        while folders:
            folder = folders.pop()
            yield folder
            inside = (f for f in self._disk.scan(folder) if f.directory and not f.name.startswith("."))
            deep = folder.count("/") >= 31
            folders += [] if deep else sorted((f"{folder}/{f.name}" for f in inside), reverse=True)

    def _read(self, path: str) -> dict[str, Any] | None:
        if not path.startswith(f"{TILES}/"):
            return super()._read(path)
        raw = self._store.read(path, self._max_payload)
        return None if raw is None else {"id": path.partition("/")[2], "payload": raw[: self._max_payload]}
