"""The scan of the frontier: which waiting task to try next, at a cost that does not grow with the queue.

A lane is read a few shards at a time into a buffer, oldest first. A shard whose directory has not changed
since it was read is not read again, except when something in it that was not claimable comes due, and every
few minutes without a reason. A shard that cannot be read keeps nobody from the others.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dfq.ports import Clock, Disk, Found
from dfq.providers.filesystem.agenda import Agenda
from dfq.providers.filesystem.complaints import Complaints
from dfq.providers.filesystem.foldertime import NEVER, FolderTime, Rounds
from dfq.tree import FAILED, FRONTIER, Entry, Tree, is_lane, parent, task_name

BUFFER = 512  # candidates to collect before trying them
LANE_PAUSE = 0.02  # how long an empty lane may stay unlooked at while another one is being worked off
REMEMBERED = 1_000_000  # entries that are not claimable now, in all shards of a lane together
CROWDED = 30.0  # how often to look again at a shard that has more of them
MAX_HELD = 1000  # leases of others that a busy worker looks at now and then
HELD_PAUSE = 0.5  # how often
DEAD_PAUSE = 0.5  # how often a busy worker looks whether somebody put dead tasks back
DEAD_AT_ONCE = 1000  # dead tasks that a look without a reason tries


@dataclass(slots=True)
class Shard:
    """What is known of a folder with tasks."""

    name: str
    path: str
    time: FolderTime = field(default_factory=FolderTime)
    blocked: Agenda = field(default_factory=Agenda)  # when to look again
    dead: set[str] = field(default_factory=set)  # these, once their letters are gone
    letters: FolderTime = field(default_factory=FolderTime)  # of the folder with those letters
    crowded_until: float = -NEVER  # there are more than we remember

    def waits(self, name: str, now: float) -> bool:
        return name in self.dead or (self.blocked.at(name) or 0.0) > now

    def drop(self, name: str) -> bool:
        was_dead = name in self.dead
        self.dead.discard(name)
        return self.blocked.drop(name) or was_dead

    def keep(self, names: set[str]) -> None:
        self.blocked.keep(names)
        self.dead &= names


@dataclass(slots=True)
class Lane:
    """The folders of a priority, and what was found in them and not tried yet."""

    number: int
    shards: dict[str, Shard] = field(default_factory=dict)
    buffer: deque[Entry] = field(default_factory=deque)
    cursor: int = 0
    empty_at: float = -NEVER

    @property
    def path(self) -> str:
        return f"{FRONTIER}/{self.number}"

    def next_due(self) -> float:
        """Return when (elapsed time) something in it is to be tried."""
        if self.buffer:
            return -NEVER
        return min((shard.blocked.soonest() for shard in self.shards.values()), default=NEVER)


class Frontier:
    """Yields entries worth trying, the best lane first. Not thread-safe: its owner locks."""

    def __init__(self, disk: Disk, tree: Tree, clock: Clock, where: str = "") -> None:
        self._disk = disk
        self._tree = tree
        self._clock = clock
        self._lanes: dict[int, Lane] = {}
        self._lanes_at = -NEVER  # when they were listed
        self._strange: set[str] = set()
        self._broken = Complaints(where)
        self._unread = Complaints(where)  # folders of dead letters
        self._rounds = Rounds(clock)
        self._held: dict[Entry, float] = {}  # leased by others, who may die -> when to look again
        self._held_due = NEVER
        self._dead_due = -NEVER
        self._remembered = max(1024, REMEMBERED // tree.shards)  # per shard

    def candidates(self) -> Iterator[Entry]:
        """Yield what may be claimable; once it ends, every lane was looked at and nothing is left to try.

        Raises OSError if nothing at all could be read.
        """
        yielded, began = False, self._clock.elapsed()
        if self._rounds.due():
            self.look_everywhere()
        self._look_at_held()
        self._look_at_dead()
        for thorough in (False, True):
            if thorough and yielded:
                return
            for lane in self._known_lanes(thorough):
                if thorough and lane.empty_at >= began and not self._broken:
                    continue  # this look has been there
                while lane.buffer or self._refill(lane, thorough):
                    yielded = True
                    yield lane.buffer.popleft()
        shards = sum(len(lane.shards) for lane in self._lanes.values())
        if not yielded and self._broken and len(self._broken) >= shards:
            raise self._broken.first()

    def block(self, entry: Entry, until: float | None, *, dead: bool = False, held: bool = False) -> None:
        """Do not offer an entry before `until` (elapsed time); None: not until something changes.

        One that is held by another worker is offered now and then all the same, but not so as to end a sleep.
        """
        shard = self._shard(entry)
        if held and len(self._held) < MAX_HELD:
            self._held[entry] = self._clock.elapsed() + HELD_PAUSE
            self._held_due = min(self._held_due, self._held[entry])
        if len(shard.blocked) + len(shard.dead) >= self._remembered and not shard.drop(entry.name):
            shard.crowded_until = self._clock.elapsed() + CROWDED
        elif dead:
            shard.blocked.drop(entry.name)
            shard.dead.add(entry.name)
        else:
            shard.dead.discard(entry.name)
            shard.blocked.put(entry.name, NEVER if until is None else until)

    def unblock(self, name: str) -> bool:
        """Offer an entry again at once; False if nothing of this name was blocked."""
        found = False
        shard_name = self._tree.shard(name)
        for lane in self._lanes.values():
            shard = lane.shards.get(shard_name)
            if shard is not None and shard.drop(name):
                entry = self._tree.entry(name, lane.number)
                self._held.pop(entry, None)
                lane.buffer.appendleft(entry)
                found = True
        return found

    def forget(self, entry: Entry) -> None:
        """Drop what is known of an entry that is gone."""
        self._held.pop(entry, None)
        self._shard(entry).drop(entry.name)

    def hint(self, entry: Entry) -> None:
        """Offer an entry that was just seen to arrive."""
        lane, shard = self._lane(entry.lane), self._shard(entry)
        if shard.waits(entry.name, self._clock.elapsed()):
            return
        if len(lane.buffer) < BUFFER:
            lane.buffer.append(entry)
        else:  # nobody takes them (the queue may be paused): the listing will tell
            shard.time.doubt()

    def noticed(self, folder: str, filename: str) -> None:
        """Take a hint from a file event: something happened to a name in a folder of the frontier, or to the folder."""
        lane, _, shard = folder.partition("/")[2].partition("/")
        if not filename:
            self.touched()
        if is_lane(lane or filename):
            self.arrived(int(lane or filename))
            name = task_name(filename)
            if shard and name is not None:
                self.hint(self._tree.entry(name, int(lane)))

    def arrived(self, lane: int) -> None:
        """Look at a lane again although it was empty a moment ago."""
        self._lane(lane).empty_at = -NEVER

    def touched(self) -> None:
        """Look for dead tasks that were put back: whoever does that touches a folder of the frontier."""
        self._dead_due = -NEVER

    def unwatched(self) -> None:
        """Look at what others hold, and at the dead, at once: no event told what became of them until now."""
        self.touched()
        for entry in list(self._held):
            self.unblock(entry.name)

    def look_everywhere(self) -> None:
        """Read every shard again: events may have been lost, and the times of directories may not tell all."""
        self._lanes_at = self._dead_due = -NEVER
        shards = [(lane, shard) for lane in self._lanes.values() for shard in lane.shards.values()]
        random.shuffle(shards)
        left = DEAD_AT_ONCE
        for lane, shard in shards:
            lane.empty_at = shard.crowded_until = -NEVER
            shard.time.doubt()
            shard.letters.doubt()
            # Whoever put a dead task back may have died before removing its letter.
            tried = list(shard.dead)[: max(0, left)]
            left -= len(tried)
            shard.dead.difference_update(tried)

    def start_over(self) -> None:
        """Offer everything again."""
        self._lanes.clear()
        self._held.clear()
        self._lanes_at = -NEVER

    def next_due(self) -> float:
        """Return when (elapsed time) looking again is worth it, as far as is known now."""
        return min([self._broken.next_look(), *(lane.next_due() for lane in self._lanes.values())])

    def folders(self) -> list[str]:
        """Return the directories in which a new task can show up."""
        known = [FRONTIER]
        for lane in self._lanes.values():
            known.append(lane.path)
            known += [shard.path for shard in lane.shards.values()]
        return known

    def strangers(self) -> set[str]:
        """Return the paths that lie in the frontier but are no tasks."""
        return self._strange

    def _look_at_held(self) -> None:
        # An idle worker is woken when a lease's holder dies. A busy one has to look by itself.
        now = self._clock.elapsed()
        if now < self._held_due:
            return
        for entry in [entry for entry, at in self._held.items() if at <= now]:
            del self._held[entry]
            self.unblock(entry.name)
        self._held_due = min(self._held.values(), default=NEVER)

    def _look_at_dead(self) -> None:
        # A retry removes the dead letter. Trying the dead at each change of their shard instead costs a dozen
        # system calls for each of them, and they may be many.
        now = self._clock.elapsed()
        if now < self._dead_due:
            return
        self._dead_due = now + DEAD_PAUSE
        for lane in self._lanes.values():
            for shard in lane.shards.values():
                if shard.dead:
                    self._look_at_letters(shard)

    def _look_at_letters(self, shard: Shard) -> None:
        folder = f"{FAILED}/{shard.name}"
        listed: list[Found] = []
        try:
            facts = self._disk.look(folder)
            if facts is not None and shard.letters.tells(facts):
                return
            at, wall = self._clock.elapsed(), self._clock.wall()
            if facts is not None:
                listed = self._disk.scan(folder)
        except OSError as e:
            self._unread.about(folder, e, self._clock.elapsed())
            return
        self._unread.over(folder)
        if facts is not None:
            shard.letters.was_read(facts, at, wall, self._disk)
        for name in shard.dead - {task_name(found.name) for found in listed}:
            self.unblock(name)

    def _known_lanes(self, thorough: bool) -> list[Lane]:
        now = self._clock.elapsed()
        if thorough or now - self._lanes_at >= LANE_PAUSE:
            self._lanes_at = now
            try:
                for number in self._list_lanes():
                    self._lane(number)
                self._broken.over(FRONTIER)
            except OSError as e:
                if not self._lanes or e.errno == errno.ENOTDIR:
                    raise
                self._broken.about(FRONTIER, e, now)
        return [self._lanes[n] for n in sorted(self._lanes, reverse=True)]

    def _list_lanes(self) -> list[int]:
        lanes = []
        for found in lanes_of(self._disk):
            if found.directory:
                lanes.append(int(found.name))
            else:
                self._note(FRONTIER, found.name)
                self._lanes.pop(int(found.name), None)
        return lanes

    def _refill(self, lane: Lane, thorough: bool) -> bool:
        now = self._clock.elapsed()
        if not thorough and now - lane.empty_at < LANE_PAUSE:
            return False
        self._list_shards(lane, thorough)
        shards = list(lane.shards.values())
        collected: list[tuple[int, Entry]] = []
        for step in range(len(shards)):
            at = (lane.cursor + step) % len(shards)
            self._collect(lane, shards[at], collected, thorough)
            if len(collected) >= BUFFER:
                lane.cursor = at + 1
                break
        collected.sort()
        lane.buffer.extend(entry for _, entry in collected)
        if not collected:
            lane.empty_at = now
            lane.cursor = random.randrange(len(shards)) if shards else 0
        return bool(collected)

    def _list_shards(self, lane: Lane, thorough: bool) -> None:
        now = self._clock.elapsed()
        if not thorough and self._broken.rests(lane.path, now):
            return
        try:
            for found in self._disk.scan(lane.path):
                if found.name in lane.shards or not self._tree.is_shard(found.name):
                    continue
                if found.directory:
                    lane.shards[found.name] = Shard(found.name, f"{lane.path}/{found.name}")
                else:
                    self._note(lane.path, found.name)
        except OSError as e:
            self._broken.about(lane.path, e, now)
        else:
            self._broken.over(lane.path)

    def _collect(self, lane: Lane, shard: Shard, into: list[tuple[int, Entry]], thorough: bool) -> None:
        """Add what may be claimable in a shard. One that cannot be read now is left for later."""
        now = self._clock.elapsed()
        if not thorough and self._broken.rests(shard.path, now):
            return
        try:
            into += self._read(lane, shard, now)
        except OSError as e:
            shard.time.doubt()
            self._broken.about(shard.path, e, now)
        else:
            self._broken.over(shard.path)

    def _read(self, lane: Lane, shard: Shard, now: float) -> list[tuple[int, Entry]]:
        facts = self._disk.look(shard.path)
        if facts is None or not facts.directory:
            shard.keep(set())
            if facts is not None:
                self._note(lane.path, shard.name)
            return []
        if shard.crowded_until > now:
            idle = shard.time.same(facts)
        else:
            idle = shard.time.tells(facts)
        if idle and shard.blocked.soonest() > now:
            return []
        at, wall = self._clock.elapsed(), self._clock.wall()
        listed = self._disk.scan(shard.path)
        shard.time.was_read(facts, at, wall, self._disk)
        names: set[str] = set()
        new = []
        for found in listed:
            waiting = found.name[:-5]
            if found.regular and shard.waits(waiting, now):  # the most of them, in a shard with many dead or leased
                names.add(waiting)
            elif found.regular and (task := task_name(found.name)) is not None:
                names.add(task)
                new.append(self._tree.entry_at(f"{shard.path}/{found.name}", task, lane.number))
            else:
                self._note(shard.path, found.name)
        shard.keep(names)  # what is gone must not come due for ever
        return list(self._aged(new))

    def _aged(self, entries: list[Entry]) -> Iterator[tuple[int, Entry]]:
        for entry in entries:
            facts = self._disk.look(entry.path)
            if facts is not None:
                self._shard(entry).blocked.drop(entry.name)
                yield facts.mtime_ns, entry

    def _note(self, folder: str, filename: str) -> None:
        if not filename.startswith(".") and len(self._strange) < 1000:
            self._strange.add(f"{folder}/{filename}")

    def _lane(self, number: int) -> Lane:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane(number)
        return lane

    def _shard(self, entry: Entry) -> Shard:
        lane, path = self._lane(entry.lane), parent(entry.path)
        name = path.rpartition("/")[2]
        shard = lane.shards.get(name)
        if shard is None:
            shard = lane.shards[name] = Shard(name, path)
        return shard


def lanes_of(disk: Disk) -> list[Found]:
    """Return what has the name of a lane; not all need be folders. Raises OSError if the frontier is none itself.

    Behind a link would lie another's tasks, and ours would seem to be gone: that must not pass for an empty queue.
    """
    listed = [found for found in disk.scan(FRONTIER) if is_lane(found.name)]
    if not listed:
        facts = disk.look(FRONTIER)
        if facts is not None and not facts.directory:
            raise OSError(errno.ENOTDIR, "a file or link stands where a folder belongs", FRONTIER)
    return listed
