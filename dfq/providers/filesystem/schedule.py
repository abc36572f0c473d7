"""Tasks that are not due yet, and their way into the frontier."""

from __future__ import annotations

from dfq.codec import loads
from dfq.errors import InvalidTask
from dfq.ports import Clock, Machine
from dfq.providers.filesystem.frontier import settled
from dfq.staleness import delay_over
from dfq.stores.disk import DiskStore
from dfq.tree import SCHEDULED, Entry, Tree, bucket_due, parent, task_name

REMEMBERED = 10_000  # scheduled tasks whose time is kept in memory, the earliest ones
RELOOK = 30.0  # how often to look at the wall clock again for tasks of another boot
NEVER = float("inf")


class Schedule:
    """Moves what is due from scheduled/ to the frontier. Not thread-safe: its owner locks."""

    def __init__(self, store: DiskStore, tree: Tree, clock: Clock, machine: Machine, max_file: int) -> None:
        self._store = store
        self._tree = tree
        self._clock = clock
        self._machine = machine
        self._max_file = max_file
        self._mtime_ns = -1
        self._read_at = -NEVER
        self._known: dict[str, tuple[float, int]] = {}  # path -> (when due, lane)
        self._first_seen: dict[str, float] = {}
        self._foreign: set[str] = set()  # of another boot: the wall clock has a say in when they are due
        self._more = False

    def promote(self) -> list[Entry]:
        """Move what is due into the frontier and return it."""
        now = self._clock.elapsed()
        facts = self._store.disk.look(SCHEDULED)
        if facts is None:
            return []
        # The one who schedules a task touches the folder, so its time tells of every new task.
        fresh = not settled(facts.mtime_ns, self._clock.wall())
        changed = facts.mtime_ns != self._mtime_ns or (fresh and now - self._read_at > 0.01)
        if changed or now - self._read_at > RELOOK or (self._more and not self._known):
            self._mtime_ns = facts.mtime_ns
            self._read(now)
        moved = []
        for path, (_, lane) in [item for item in self._known.items() if item[1][0] <= now]:
            del self._known[path]
            entry = self._move(path, lane)
            if entry is not None:
                moved.append(entry)
        return moved

    def next_due(self) -> float:
        """Return when (elapsed time) the next task is due."""
        soonest = min((due for due, _ in self._known.values()), default=NEVER)
        return min(soonest, self._read_at + RELOOK) if self._known else soonest

    def find(self, name: str) -> str | None:
        """Return where a task of this name is scheduled; None if it is not."""
        for bucket in self._store.disk.scan(SCHEDULED):
            path = f"{SCHEDULED}/{bucket.name}/{name}.json"
            if bucket.directory and self._store.exists(path):
                return path
        return None

    def paths(self) -> list[str]:
        """Return where each scheduled task lies, the earliest first."""
        disk = self._store.disk
        buckets = sorted(b.name for b in disk.scan(SCHEDULED) if b.directory and bucket_due(b.name) is not None)
        return [
            f"{SCHEDULED}/{bucket}/{found.name}"
            for bucket in buckets
            for found in disk.scan(f"{SCHEDULED}/{bucket}")
            if found.regular and task_name(found.name) is not None
        ]

    def _read(self, now: float) -> None:
        self._read_at = now
        paths = self.paths()
        self._more = len(paths) > REMEMBERED
        known, self._known = self._known, {}
        seen, self._first_seen = self._first_seen, {}
        for path in paths[:REMEMBERED]:
            first = self._first_seen[path] = seen.get(path, now)
            if path in known and path not in self._foreign:
                self._known[path] = known[path]
                continue
            raw = self._store.read(path, self._max_file)
            if raw is None:
                continue
            try:
                record = loads(raw, path) if len(raw) <= self._max_file else {}
            except InvalidTask:
                record = {}  # due at once: the claim that meets it says what is wrong with it
            if record.get("boot_id") != self._machine.boot_id:
                self._foreign.add(path)
            lane = record.get("priority", 5)
            valid = isinstance(lane, int) and not isinstance(lane, bool) and 0 <= lane <= 9
            due = delay_over(record, self._clock, self._machine, first)
            self._known[path] = (due, lane if valid else 5)
        self._foreign.intersection_update(self._known)

    def _move(self, path: str, lane: int) -> Entry | None:
        filename = path.rpartition("/")[2]
        entry = self._tree.entry(filename[:-5], lane)
        if self._store.name_again(path, entry.path) is None:
            return None  # somebody else moved it
        self._store.sync(entry.path)
        self._store.remove(path)
        self._store.disk.rmdir(parent(path))
        return entry
