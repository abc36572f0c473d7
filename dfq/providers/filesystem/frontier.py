"""The scan of the frontier: which waiting task to try next, at a cost that does not grow with the queue.

A lane is read a few shards at a time into a buffer, oldest first. A shard whose directory has not changed
since it was read is not read again, except when something in it that was not claimable comes due.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dfq.ports import Clock, Disk
from dfq.tree import FRONTIER, Entry, Tree, is_lane, parent, task_name

BUFFER = 512  # candidates to collect before trying them
SETTLED_NS = 50_000_000  # a directory time older than this when it was read tells every later change
COARSE_NS = 2_000_000_000  # the same where times are whole seconds (ext3, ext4 with small inodes), or every other
LANE_PAUSE = 0.02  # how long an empty lane may stay unlooked at while another one is being worked off
MAX_BLOCKED = 4096  # remembered per shard
MAX_HELD = 1000  # leases of others that a busy worker looks at now and then
HELD_PAUSE = 0.5  # how often
NEVER = float("inf")


@dataclass(slots=True)
class _Shard:
    path: str
    mtime_ns: int = -1
    settled: bool = False
    blocked: dict[str, float] = field(default_factory=dict)  # name -> when to look again
    dead: set[str] = field(default_factory=set)  # of these, the ones to look at when the shard changes

    def due(self) -> float:
        return min(self.blocked.values(), default=NEVER)


@dataclass(slots=True)
class _Lane:
    number: int
    shards: dict[str, _Shard] = field(default_factory=dict)
    buffer: deque[Entry] = field(default_factory=deque)
    cursor: int = 0
    empty_at: float = -1.0


class Frontier:
    """Yields entries worth trying, the best lane first. Not thread-safe: its owner locks."""

    def __init__(self, disk: Disk, tree: Tree, clock: Clock) -> None:
        self._disk = disk
        self._tree = tree
        self._clock = clock
        self._lanes: dict[int, _Lane] = {}
        self._strange: set[str] = set()
        self._held: dict[Entry, float] = {}  # leased by others, who may die -> when to look again
        self._held_due = NEVER

    def candidates(self) -> Iterator[Entry]:
        """Yield what may be claimable; once it ends, every lane was looked at and nothing is left to try."""
        yielded = False
        self._look_at_held()
        for thorough in (False, True):
            if thorough and yielded:
                return
            for lane in self._known_lanes(thorough):
                while lane.buffer or self._refill(lane, thorough):
                    yielded = True
                    yield lane.buffer.popleft()

    def _look_at_held(self) -> None:
        # An idle worker is woken when a lease's holder dies. A busy one has to look by itself.
        now = self._clock.elapsed()
        if now < self._held_due:
            return
        for entry in [entry for entry, at in self._held.items() if at <= now]:
            del self._held[entry]
            self.unblock(entry.name)
        self._held_due = min(self._held.values(), default=NEVER)

    def block(self, entry: Entry, until: float | None, *, dead: bool = False, held: bool = False) -> None:
        """Do not offer an entry before `until` (elapsed time); None: not until something changes.

        One that is held by another worker is offered now and then all the same, but not so as to end a sleep.
        """
        shard = self._shard(entry)
        if held and len(self._held) < MAX_HELD:
            self._held[entry] = self._clock.elapsed() + HELD_PAUSE
            self._held_due = min(self._held_due, self._held[entry])
        if len(shard.blocked) >= MAX_BLOCKED:
            dropped = next(iter(shard.blocked))
            del shard.blocked[dropped]
            shard.dead.discard(dropped)
            shard.settled = False
        shard.blocked[entry.name] = NEVER if until is None else until
        if dead:
            shard.dead.add(entry.name)

    def unblock(self, name: str) -> bool:
        """Offer an entry again at once; False if nothing of this name was blocked."""
        found = False
        shard_name = self._tree.shard(name)
        for lane in self._lanes.values():
            shard = lane.shards.get(shard_name)
            if shard is not None and shard.blocked.pop(name, None) is not None:
                shard.dead.discard(name)
                entry = self._tree.entry(name, lane.number)
                self._held.pop(entry, None)
                lane.buffer.appendleft(entry)
                found = True
        return found

    def forget(self, entry: Entry) -> None:
        """Drop what is known of an entry that is gone."""
        shard = self._shard(entry)
        self._held.pop(entry, None)
        shard.blocked.pop(entry.name, None)
        shard.dead.discard(entry.name)

    def hint(self, entry: Entry) -> None:
        """Offer an entry that was just seen to arrive."""
        if entry.name not in self._shard(entry).blocked:
            self._lane(entry.lane).buffer.append(entry)

    def arrived(self, lane: int) -> None:
        """Look at a lane again although it was empty a moment ago."""
        self._lane(lane).empty_at = -1.0

    def look_everywhere(self) -> None:
        """Read every shard again: events may have been lost."""
        for lane in self._lanes.values():
            for shard in lane.shards.values():
                shard.settled = False

    def next_due(self) -> float:
        """Return when (elapsed time) the next blocked entry should be looked at."""
        return min((s.due() for lane in self._lanes.values() for s in lane.shards.values()), default=NEVER)

    def folders(self) -> list[str]:
        """Return the directories in which a new task can show up."""
        known = [FRONTIER]
        for lane in self._lanes.values():
            known.append(f"{FRONTIER}/{lane.number}")
            known += [shard.path for shard in lane.shards.values()]
        return known

    def strangers(self) -> set[str]:
        """Return the paths that lie in the frontier but are no tasks."""
        return self._strange

    def _known_lanes(self, thorough: bool) -> list[_Lane]:
        if thorough or not self._lanes:
            for found in self._disk.scan(FRONTIER):
                if found.directory and is_lane(found.name):
                    self._lane(int(found.name))
        return [self._lanes[n] for n in sorted(self._lanes, reverse=True)]

    def _refill(self, lane: _Lane, thorough: bool) -> bool:
        now = self._clock.elapsed()
        if not thorough and now - lane.empty_at < LANE_PAUSE:
            return False
        for found in self._disk.scan(f"{FRONTIER}/{lane.number}"):
            if found.directory and self._tree.is_shard(found.name) and found.name not in lane.shards:
                lane.shards[found.name] = _Shard(f"{FRONTIER}/{lane.number}/{found.name}")
        shards = list(lane.shards.values())
        collected: list[tuple[int, Entry]] = []
        for step in range(len(shards)):
            at = (lane.cursor + step) % len(shards)
            self._collect(lane, shards[at], now, collected)
            if len(collected) >= BUFFER:
                lane.cursor = at + 1
                break
        collected.sort()
        lane.buffer.extend(entry for _, entry in collected)
        if not collected:
            lane.empty_at = now
            lane.cursor = random.randrange(len(shards)) if shards else 0
        return bool(collected)

    def _collect(self, lane: _Lane, shard: _Shard, now: float, into: list[tuple[int, Entry]]) -> None:
        facts = self._disk.look(shard.path)
        if facts is None or not facts.directory:
            return
        changed = facts.mtime_ns != shard.mtime_ns
        if not changed and shard.settled and shard.due() > now:
            return
        if changed:
            for name in shard.dead:
                shard.blocked.pop(name, None)
            shard.dead.clear()
        shard.mtime_ns = facts.mtime_ns
        shard.settled = settled(facts.mtime_ns, self._clock.wall())
        for found in self._disk.scan(shard.path, times=True):
            task = task_name(found.name) if found.regular else None
            if task is None:
                self._note(shard.path, found.name)
            elif shard.blocked.get(task, 0.0) <= now:
                shard.blocked.pop(task, None)
                into.append((found.mtime_ns, self._tree.entry_at(f"{shard.path}/{found.name}", task, lane.number)))

    def _note(self, folder: str, filename: str) -> None:
        if not filename.startswith(".") and len(self._strange) < 1000:
            self._strange.add(f"{folder}/{filename}")

    def _lane(self, number: int) -> _Lane:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane(number)
        return lane

    def _shard(self, entry: Entry) -> _Shard:
        lane, path = self._lane(entry.lane), parent(entry.path)
        name = path.rpartition("/")[2]
        shard = lane.shards.get(name)
        if shard is None:
            shard = lane.shards[name] = _Shard(path)
        return shard


def settled(mtime_ns: int, wall: float) -> bool:
    """Tell whether a directory's time is so old that every change from now on will show in it."""
    grain = SETTLED_NS if mtime_ns % 1_000_000_000 else COARSE_NS + SETTLED_NS
    return wall * 1e9 - mtime_ns > grain
