"""Tasks that are not due yet, and their way into the frontier."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

from dfq.codec import loads
from dfq.errors import InvalidTask
from dfq.ports import Clock, Machine
from dfq.providers.filesystem.agenda import Agenda
from dfq.providers.filesystem.complaints import SOON, Complaints
from dfq.providers.filesystem.foldertime import NEVER, FolderTime, Rounds
from dfq.queue import DEFAULT_PRIORITY
from dfq.records import read_task
from dfq.staleness import delay_over
from dfq.stores.disk import DiskStore
from dfq.tree import SCHEDULED, Entry, Tree, is_bucket, parent, task_name

REMEMBERED = 50_000  # scheduled tasks whose time is kept in memory, those of the earliest folders
AT_ONCE = 2_000  # files to read before other things get their turn
MOVES_AT_ONCE = 500  # and files to move
RELOOK = 30.0  # how often to look at all folders, and at the wall clock for tasks of another boot


@dataclass(slots=True)
class _Bucket:
    """A folder of tasks that are due within one window of time, as far as we have read it."""

    path: str
    time: FolderTime = field(default_factory=FolderTime)
    known: Agenda = field(default_factory=Agenda)  # file name -> when due
    lanes: dict[str, int] = field(default_factory=dict)  # where that is not the default
    foreign: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)  # of another boot; since when seen
    complete: bool = False  # all that is in it is known

    def drop(self, filename: str) -> None:
        self.known.drop(filename)
        self.lanes.pop(filename, None)
        self.foreign.pop(filename, None)


class Schedule:
    """Moves what is due from scheduled/ to the frontier. Not thread-safe: its owner locks."""

    def __init__(
        self, store: DiskStore, tree: Tree, clock: Clock, machine: Machine, max_file: int, where: str = ""
    ) -> None:
        self._store = store
        self._tree = tree
        self._clock = clock
        self._machine = machine
        self._max_file = max_file
        self._time = FolderTime()
        self._buckets: dict[str, _Bucket] = {}
        self._looked_at = -NEVER  # at all buckets
        self._broken = Complaints(where)  # what cannot be read
        self._stuck = Complaints(where)  # what cannot be moved
        self._rounds = Rounds(clock)
        self._filling = True  # False once as much as may be is in memory, until half of that is gone

    # -- for workers -------------------------------------------------------------------------------

    def promote(self) -> list[Entry]:
        """Move what is due into the frontier and return it. What cannot be read keeps nothing else waiting."""
        now = self._clock.elapsed()
        if not self._broken.rests(SCHEDULED, now):
            try:
                self._refresh()
                self._broken.over(SCHEDULED)
            except OSError as e:
                self._broken.about(SCHEDULED, e, now)
        moved = []
        due = [(bucket, name) for bucket in self._buckets.values() for name in bucket.known.due(now)]
        due.sort(key=lambda item: item[0].known.at(item[1]) or 0.0)
        for bucket, filename in due[:MOVES_AT_ONCE]:
            entry = self._promote(bucket, filename, now)
            if entry is not None:
                moved.append(entry)
        return moved

    def next_due(self) -> float:
        """Return when (elapsed time) looking again is worth it, as far as is known now."""
        now = self._clock.elapsed()
        due = self._broken.next_look()
        for bucket in self._buckets.values():
            due = min(due, bucket.known.soonest())
            if self._filling and not bucket.complete and not self._broken.rests(bucket.path, now):
                return now
        if self._looked_at == -NEVER or self._broken.rests(SCHEDULED, now):
            return due
        return min(due, self._time.settles(), self._looked_at + RELOOK if self._buckets else NEVER)

    def _promote(self, bucket: _Bucket, filename: str, now: float) -> Entry | None:
        path = f"{bucket.path}/{filename}"
        entry = self._tree.entry(filename[:-5], bucket.lanes.get(filename, DEFAULT_PRIORITY))
        try:
            named = self._store.name_again(path, entry.path)
            if named is False:
                self._check_duplicate(path, entry)
            moved = named is not None  # else somebody else moved it
            if moved:
                self._store.sync(entry.path)
                self._store.remove(path)
            bucket.drop(filename)
            if not len(bucket.known):
                self._store.disk.rmdir(bucket.path)
        except OSError as e:
            self._stuck.about(path, e, now)
            bucket.known.put(filename, now + SOON)
            return None
        self._stuck.over(path)
        return entry if moved else None

    def _check_duplicate(self, path: str, entry: Entry) -> None:
        """Raise FileExistsError if what has our name in the frontier is no task: then ours must not go for it."""
        there = self._store.read(entry.path, self._max_file)
        if there is None or there == self._store.read(path, self._max_file):
            return  # gone again, or ours: whoever linked it did not get to the end
        try:
            read_task(there, entry, self._max_file)
        except InvalidTask:
            raise FileExistsError(errno.EEXIST, f"{entry.path} is no task, and has its name", path) from None

    def _refresh(self) -> None:
        """Learn what was scheduled since the last look."""
        facts = self._store.disk.look(SCHEDULED)
        if facts is None:
            self._buckets.clear()
            return
        if not facts.directory:
            raise OSError(errno.ENOTDIR, "a file or link stands where a folder belongs", SCHEDULED)
        at, wall = self._clock.elapsed(), self._clock.wall()
        round_due = self._rounds.due()
        # The one who schedules a task touches the folder, so its time tells of every new task.
        if round_due or not self._time.tells(facts) or at - self._looked_at >= RELOOK:
            listed = self._list()
            self._time.was_read(facts, at, wall, self._store.disk)
            self._looked_at = at
            self._buckets = {path: self._buckets.get(path) or _Bucket(path) for path in listed}
            self._broken.keep({SCHEDULED, *listed})
            for bucket in self._buckets.values():
                self._look(bucket, anyway=round_due)
            self._ask_the_wall_clock()
        self._fill()

    def _list(self) -> list[str]:
        found = self._store.disk.scan(SCHEDULED)
        return [f"{SCHEDULED}/{name}" for name in sorted(f.name for f in found if f.directory and is_bucket(f.name))]

    def _look(self, bucket: _Bucket, *, anyway: bool) -> None:
        try:
            facts = self._store.disk.look(bucket.path)
        except OSError:
            facts = None  # reading it will tell
        if anyway or facts is None or not bucket.time.tells(facts):
            bucket.complete = False

    def _ask_the_wall_clock(self) -> None:
        for bucket in self._buckets.values():
            for filename, (record, first_seen) in bucket.foreign.items():
                bucket.known.put(filename, delay_over(record, self._clock, self._machine, first_seen))

    def _fill(self) -> None:
        """Read what is not known yet, the earliest first, up to what a look may cost and memory may hold."""
        total = sum(len(bucket.known) for bucket in self._buckets.values())
        self._filling = total < (REMEMBERED if self._filling else REMEMBERED // 2)
        left = AT_ONCE
        for bucket in list(self._buckets.values()):
            if bucket.complete or self._broken.rests(bucket.path, self._clock.elapsed()):
                continue
            while total >= REMEMBERED and (last := self._last_known()) is not None and last.path > bucket.path:
                total -= len(last.known)
                self._buckets[last.path] = _Bucket(last.path)
            if total >= REMEMBERED or left <= 0:
                return
            before = len(bucket.known)
            try:
                left -= self._read(bucket, min(left, REMEMBERED - total))
                self._broken.over(bucket.path)
            except OSError as e:
                self._broken.about(bucket.path, e, self._clock.elapsed())
            total += len(bucket.known) - before

    def _last_known(self) -> _Bucket | None:
        return next((bucket for bucket in reversed(self._buckets.values()) if len(bucket.known)), None)

    def _read(self, bucket: _Bucket, limit: int) -> int:
        """Read up to `limit` of a folder's tasks that are not known; return how many that were."""
        disk = self._store.disk
        facts = disk.look(bucket.path)
        if facts is None:
            self._buckets.pop(bucket.path, None)
            return 0
        at, wall = self._clock.elapsed(), self._clock.wall()
        listed = disk.scan(bucket.path)
        if not listed:
            disk.rmdir(bucket.path)  # whoever is about to put something there makes it anew
        names = {found.name for found in listed if found.regular and task_name(found.name) is not None}
        for filename in [filename for filename in bucket.known if filename not in names]:
            bucket.drop(filename)
        new = sorted(filename for filename in names if filename not in bucket.known)
        failed: OSError | None = None
        for filename in new[:limit]:
            try:
                self._learn(bucket, filename, at)
            except OSError as e:
                failed = e
        if failed is not None:
            raise failed
        bucket.complete = len(new) <= limit
        if bucket.complete:
            bucket.time.was_read(facts, at, wall, disk)
        return min(len(new), limit)

    def _learn(self, bucket: _Bucket, filename: str, now: float) -> None:
        record = self._record(f"{bucket.path}/{filename}")
        if record is None:
            return
        lane = _lane(record)
        if lane != DEFAULT_PRIORITY:
            bucket.lanes[filename] = lane
        if record.get("boot_id") != self._machine.boot_id:
            times = {key: record.get(key) for key in ("delay_s", "due_at", "boot_id")}
            bucket.foreign[filename] = (times, now)
        bucket.known.put(filename, delay_over(record, self._clock, self._machine, now))

    def _record(self, path: str) -> dict[str, Any] | None:
        raw = self._store.read(path, self._max_file)
        if raw is None:
            return None
        try:
            return loads(raw, path) if len(raw) <= self._max_file else {}
        except InvalidTask:
            return {}  # due at once: the claim that meets it says what is wrong with it

    # -- for those who look, and cancel ------------------------------------------------------------

    def find(self, name: str) -> str | None:
        """Return where a task of this name is scheduled; None if it is not."""
        return next(iter(self.places(name)), None)

    def places(self, name: str) -> list[str]:
        """Return all the places where a task of this name is scheduled."""
        look = self._store.disk.look
        paths = (f"{bucket}/{name}.json" for bucket in self._list())
        return [path for path in paths if (facts := look(path)) is not None and facts.regular]

    def paths(self) -> list[str]:
        """Return where each scheduled task lies, the earliest folders first."""
        return [
            f"{bucket}/{found.name}"
            for bucket in self._list()
            for found in self._store.disk.scan(bucket)
            if found.regular and task_name(found.name) is not None
        ]

    def expose(self, path: str) -> Entry | None:
        """Give a scheduled task its name in the frontier before its time; None if somebody else moved it."""
        record = self._record(path)
        if record is None:
            return None
        entry = self._tree.entry(path.rpartition("/")[2][:-5], _lane(record))
        if self._store.name_again(path, entry.path) is None:
            return None
        self._store.sync(entry.path)  # whoever withdraws the other name must not leave the task with none
        return entry

    def withdraw(self, path: str) -> None:
        """Remove a name from the schedule, and its folder with the last one."""
        self._store.remove(path)
        self._store.disk.rmdir(parent(path))


def _lane(record: dict[str, Any]) -> int:
    lane = record.get("priority", DEFAULT_PRIORITY)
    return lane if isinstance(lane, int) and not isinstance(lane, bool) and 0 <= lane <= 9 else DEFAULT_PRIORITY
