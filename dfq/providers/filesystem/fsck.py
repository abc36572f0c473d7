"""Checking the files of a queue against the format, and putting right what can be (ADR 012).

It goes folder by folder and shard by shard, so its memory follows the size of a shard. Workers may run meanwhile:
what looks wrong is looked at again a moment later, and a repair is what a worker does on its way.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from dfq.codec import loads
from dfq.errors import InvalidTask, QueueUnavailable
from dfq.ports import Clock, Found
from dfq.providers.filesystem.audit import Audit, is_int
from dfq.providers.filesystem.audit_schedule import BucketAudit
from dfq.providers.filesystem.audit_shard import ShardAudit
from dfq.providers.filesystem.faults import Finding, Suspect, suspect
from dfq.providers.filesystem.housekeeping import TEMPORARY
from dfq.providers.filesystem.meta import FORMAT, READ_LIMIT, shards_of
from dfq.providers.filesystem.schedule import Schedule
from dfq.providers.filesystem.steady import Steadiness
from dfq.slotlog import SlotLog
from dfq.stores.disk import DiskStore
from dfq.tree import CLOCK, FILES, FOLDERS, FRONTIER, META, PAUSED, SCHEDULED, Tree, is_bucket, is_lane

SETTLE = 1.0  # seconds between two looks: whoever was in the middle of something is through with it by then
ROUNDS = 4  # of repairing a part: one repair may show what another one hid
MAX_WAITING = 10_000  # findings that wait for their second look
OURS = ".tmp-"  # how the temporary files begin that a queue makes

A = TypeVar("A", bound=Audit)
Part = Callable[[], list[Suspect]]
Progress = Callable[[int, int], None]
Wait = Callable[[float], object]


class _Seen(NamedTuple):
    """A part in which something looked wrong, and since when (elapsed time)."""

    part: Part
    at: float
    keys: frozenset[tuple[str, str]]


class Fsck:
    """One check of a queue."""

    def __init__(
        self,
        store: DiskStore,
        tree: Tree,
        log: SlotLog,
        schedule: Schedule,
        steadiness: Steadiness,
        clock: Clock,
        *,
        max_file: int,
        wait: Wait,
        settle: float = SETTLE,
    ) -> None:
        self._store = store
        self._disk = store.disk
        self._tree = tree
        self._log = log
        self._schedule = schedule
        self._steadiness = steadiness
        self._clock = clock
        self._max_file = max_file
        self._wait = wait
        self._settle = settle
        self._temporary: dict[int, int] = {}  # file -> how many temporary names it has
        self._buckets: dict[int, str] = {}  # digest of a scheduled name -> the folder where it was seen

    def findings(self, *, repair: bool = False, progress: Progress | None = None) -> Iterator[Finding]:
        """Yield what is wrong, part by part. With repair, also put right what can be; each finding tells whether."""
        parts = self._parts()
        waiting: deque[_Seen] = deque()
        for n, part in enumerate(parts):
            if progress is not None:
                progress(n, len(parts))
            found = self._guarded(part)
            if found:
                keys = frozenset(s.finding.key for s in found)
                waiting.append(_Seen(part, self._clock.elapsed(), keys))
            while waiting and (self._is_due(waiting[0]) or sum(len(s.keys) for s in waiting) > MAX_WAITING):
                yield from self._confirmed(waiting.popleft(), repair)
        while waiting:
            yield from self._confirmed(waiting.popleft(), repair)
        if progress is not None:
            progress(len(parts), len(parts))

    def _is_due(self, seen: _Seen) -> bool:
        return self._clock.elapsed() - seen.at >= self._settle

    def _confirmed(self, seen: _Seen, repair: bool) -> Iterator[Finding]:
        left = seen.at + self._settle - self._clock.elapsed()
        if left > 0:
            self._wait(left)
        now = [s for s in self._guarded(seen.part) if s.finding.key in seen.keys]
        found = {s.finding.key: s.finding for s in now}
        for _ in range(ROUNDS if repair else 0):
            mendable = [s for s in now if s.repair is not None]
            if not mendable:
                break
            for s in mendable:
                self._repair(s)
            now = self._guarded(seen.part)
            found = {s.finding.key: s.finding for s in now} | found
        left_over = {s.finding.key for s in now}
        for key, finding in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
            yield replace(finding, repaired=repair and key not in left_over)

    @staticmethod
    def _repair(it: Suspect) -> None:
        try:
            if it.repair is not None:
                it.repair()
        except OSError:
            return  # a full or read-only disk: the next look tells that it is still there

    @staticmethod
    def _guarded(part: Part) -> list[Suspect]:
        try:
            return part()
        except OSError as e:
            path = os.fsdecode(e.filename) if isinstance(e.filename, str | bytes) else "."
            return [suspect("unreadable", path, e.strerror or str(e))]

    # -- the parts ---------------------------------------------------------------------------------

    def _parts(self) -> list[Part]:
        """Return the parts of the queue in the order in which to look at them."""
        sharded = [top for top in FOLDERS if top not in (FRONTIER, SCHEDULED)]
        lanes = [f"{FRONTIER}/{lane}" for lane in self._lanes()]
        parts: list[Part] = [
            self._whole,
            self._folder(FRONTIER, is_lane),
            self._folder(SCHEDULED, is_bucket),
            *(self._folder(folder, self._tree.is_shard) for folder in [*sharded, *lanes]),
        ]
        if all(self._is_folder_or_none(folder) for folder in [*FOLDERS, *lanes]):
            # Else the rest is not looked at: that something is missing there means nothing.
            parts += [self._bucket(name) for name in self._inside(SCHEDULED, lambda f: f.directory)]
            shards = {name for folder in [*sharded, *lanes] for name in self._inside(folder, self._is_shard)}
            parts += [self._shard(shard) for shard in sorted(shards)]
        return parts

    def _lanes(self) -> list[int]:
        return sorted((int(name) for name in self._inside(FRONTIER, lambda f: is_lane(f.name))), reverse=True)

    def _is_shard(self, found: Found) -> bool:
        return self._tree.is_shard(found.name)

    def _inside(self, folder: str, wanted: Callable[[Found], bool]) -> list[str]:
        try:
            found = self._disk.scan(folder)
        except OSError:
            return []  # looking at the folder itself tells why
        return sorted(f.name for f in found if wanted(f) and not f.name.startswith("."))

    def _is_folder_or_none(self, path: str) -> bool:
        try:
            facts = self._disk.look(path)
        except OSError:
            return False
        return facts is None or facts.directory

    def _folder(self, path: str, is_ours: Callable[[str], bool]) -> Part:
        def look() -> list[Suspect]:
            audit = self._audit(Audit)
            for found in audit.listing(path) if audit.folder(path) else []:
                if not is_ours(found.name) and not (path == SCHEDULED and found.directory):
                    audit.stranger(f"{path}/{found.name}", found)
            return audit.suspects

        return look

    def _bucket(self, bucket: str) -> Part:
        def elsewhere(name: str) -> str | None:
            other = self._buckets.setdefault(hash(name), bucket)
            path = f"{SCHEDULED}/{other}/{name}.json"
            return path if other != bucket and self._store.exists(path) else None

        def look() -> list[Suspect]:
            audit = self._audit(BucketAudit)
            audit.look(bucket, self._lanes(), self._temporary, elsewhere)
            return audit.suspects

        return look

    def _shard(self, shard: str) -> Part:
        def is_scheduled(name: str) -> bool:
            return self._schedule.find(name) is not None

        def look() -> list[Suspect]:
            audit = self._audit(ShardAudit)
            audit.look(shard, self._lanes(), self._temporary, is_scheduled)
            return audit.suspects

        return look

    def _audit(self, kind: type[A]) -> A:
        return kind(self._store, self._tree, self._log, self._clock, self._max_file)

    # -- the queue's own folder --------------------------------------------------------------------

    def _whole(self) -> list[Suspect]:
        audit = self._audit(Audit)
        audit.folder(".")
        self._temporary = {}
        for found in audit.listing("."):
            if found.name in FILES:
                self._file(audit, found)
            elif found.name.startswith(OURS) and found.regular:
                self._leftover(audit, found)
            elif found.name not in FOLDERS:
                audit.stranger(found.name, found)
        return audit.suspects

    def _file(self, audit: Audit, found: Found) -> None:
        code = {CLOCK: "bad-clock", PAUSED: "bad-paused"}.get(found.name, "queue-bad")
        if not found.regular:
            audit.note(code, found.name, "it is no file")
        elif audit.file(found.name) and audit.record(found.name) is None:
            audit.note(code, found.name, "it is not JSON", self._steadiness.seconds if code == "bad-clock" else None)

    def _leftover(self, audit: Audit, found: Found) -> None:
        facts = self._disk.look(found.name)
        if facts is None:
            return
        self._temporary[facts.inode] = self._temporary.get(facts.inode, 0) + 1
        age = self._clock.wall() - found.mtime_ns / 1e9
        if age >= TEMPORARY:
            audit.note("old-temporary", found.name, f"{age / 3600:.0f} h old", lambda: self._remove_old(found.name))

    def _remove_old(self, name: str) -> None:
        # Its time means something only if the clock has not jumped since (ADR 018): its writer may still be at it.
        if self._steadiness.seconds() >= TEMPORARY:
            self._store.remove(name)


def check_meta(store: DiskStore, clock: Clock, where: str) -> Finding | None:
    """Return what is wrong with queue.json, so that the queue cannot be opened; None if nothing is."""
    try:
        shards_of(store, clock, create=False, shards=1, where=where)
    except QueueUnavailable as e:
        raw = store.read(META, READ_LIMIT)
        found = str(e).partition(";")[0].removeprefix(f"{where}/{META}: ")
        if raw is None:
            return suspect("queue-missing", META, "there is none").finding
        try:
            version = loads(raw, META).get("format")
        except InvalidTask:
            version = None
        return suspect("queue-newer" if is_int(version) and version > FORMAT else "queue-bad", META, found).finding
    return None
