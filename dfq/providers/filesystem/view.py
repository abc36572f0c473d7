"""Looking at a queue's files: counts, lists and single tasks. It changes nothing and decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dfq.codec import decode_payload, loads
from dfq.errors import InvalidTask, TaskNotFound
from dfq.lease import Slot, parse
from dfq.names import encode
from dfq.ports import Clock, Machine
from dfq.providers.filesystem.frontier import lanes_of
from dfq.providers.filesystem.schedule import Schedule
from dfq.queue import Counts, State, TaskInfo
from dfq.records import token_of
from dfq.slotlog import SlotLog
from dfq.staleness import Judge, moment
from dfq.stores.disk import DiskStore
from dfq.tree import (
    COMPLETED,
    FAILED,
    FRONTIER,
    LEASES,
    RETIRED,
    Entry,
    Tree,
    epoch_of,
    id_of,
    in_epoch,
    parent,
    plain,
    slot_name,
    task_name,
)


class View:
    """What a queue looks like from outside."""

    def __init__(
        self,
        store: DiskStore,
        tree: Tree,
        log: SlotLog,
        judge: Judge,
        schedule: Schedule,
        clock: Clock,
        machine: Machine,
        max_file: int,
    ) -> None:
        self._store = store
        self._disk = store.disk
        self._tree = tree
        self._log = log
        self._judge = judge
        self._schedule = schedule
        self._clock = clock
        self._machine = machine
        self._max_file = max_file

    def counts(self) -> Counts:
        """Count the tasks in each state."""
        tally = {"pending": 0, "leased": 0, "scheduled": 0, "completed": 0, "failed": 0}
        again = set()  # ids that were put back: they count by what they are now
        for entry, state, _ in self._open_tasks():
            tally[state] += 1
            if epoch_of(entry.name):
                again.add(plain(entry.name))
        scheduled = self._schedule.paths()
        tally["scheduled"] += len(scheduled)
        again |= {plain(name) for path in scheduled if (name := task_name(path.rpartition("/")[2])) and epoch_of(name)}
        for shard in self._shards(COMPLETED):
            tally["completed"] += len(self._done(shard, again))
        return Counts(**tally)

    def tasks(self, state: State | None) -> Iterator[TaskInfo]:
        """Iterate over tasks; those that go away meanwhile are left out."""
        if state != "completed":
            for entry, found, slot in self._open_tasks():
                if state in (None, found):
                    info = self._describe(entry, found, slot)
                    if info is not None:
                        yield info
        if state in (None, "scheduled"):
            for path in self._schedule.paths():
                info = self._scheduled(path)
                if info is not None:
                    yield info
        if state in (None, "completed"):
            again = {plain(entry.name) for entry in self.frontier() if epoch_of(entry.name)}
            for shard in self._shards(COMPLETED):
                for name in sorted(self._done(shard, again)):
                    info = self._witness(name)
                    if info is not None:
                        yield info

    def get(self, task_id: str) -> TaskInfo:
        """Return what is known of one task. Raises TaskNotFound."""
        info = self._get(encode(task_id)) or self._get(encode(task_id))  # it may have begun its next epoch
        if info is None:
            raise TaskNotFound(f"there is no task {task_id!r} in this queue")
        return info

    def _get(self, plain_name: str) -> TaskInfo | None:
        name = self.current(plain_name)
        info = self._witness(name)
        if info is not None:
            return info
        # In the order in which a task moves, so that it cannot slip by.
        path, entry = self._schedule.find(name), self.find(name)
        if entry is not None:
            slot = self._log.top(name)
            info = self._describe(entry, self._state(slot), slot)
        elif path is not None:
            info = self._scheduled(path)
        return info or self._witness(name)

    def current(self, name: str) -> str:
        """Return the name of an id in its latest epoch (ADR 017)."""
        if not self._store.exists(self._tree.completed(name)) and self.is_open(name):
            return name
        highest = max(self._epochs(name), default=0)
        following = in_epoch(name, highest + 1)
        return following if self.is_open(following) else in_epoch(name, highest)

    def is_open(self, name: str) -> bool:
        """Tell whether a name waits in the schedule or in the frontier, in the order in which a task moves."""
        return self._schedule.find(name) is not None or self.find(name) is not None

    def _epochs(self, name: str) -> list[int]:
        folder = parent(self._tree.completed(name))
        return [epoch_of(found) for found in self._names(folder) if plain(found) == name]

    def find(self, name: str) -> Entry | None:
        """Return the frontier entry of a name, from the best lane that has one."""
        return next(self.places(name), None)

    def places(self, name: str) -> Iterator[Entry]:
        """Iterate over the frontier entries of a name, the best lane first."""
        for lane in self._lanes():
            entry = self._tree.entry(name, int(lane))
            shard = self._disk.look(parent(entry.path))  # behind a link lies another's file
            if shard is not None and shard.directory and self._store.exists(entry.path):
                yield entry

    def id_of(self, entry: Entry) -> str:
        """Return the id of an entry whose name does not tell it."""
        task = self._read(entry.path) or {}
        return str(task.get("id") or plain(entry.name))

    def frontier(self) -> Iterator[Entry]:
        """Iterate over the entries of the frontier that are not completed, each name once."""
        for entry, _, _ in self._open_tasks():
            yield entry

    def failed(self) -> list[str]:
        """Return the names of the dead letters."""
        return [n for shard in self._shards(FAILED) for n in sorted(self._names(f"{FAILED}/{shard}"))]

    def _open_tasks(self) -> Iterator[tuple[Entry, State, Slot | None]]:
        lanes = self._lanes()
        shards = {lane: set(self._shards(f"{FRONTIER}/{lane}")) for lane in lanes}
        for shard in sorted(set().union(*shards.values())) if shards else []:
            seen: set[str] = set()
            done = self._names(f"{COMPLETED}/{shard}")
            slots = {found[0] for f in self._disk.scan(f"{LEASES}/{shard}") if (found := slot_name(f.name)) is not None}
            for lane in lanes:
                folder = f"{FRONTIER}/{lane}/{shard}"
                names = self._names(folder) if shard in shards[lane] else set()
                for name in sorted(names - seen - done):
                    seen.add(name)
                    slot = self._log.top(name) if name in slots else None
                    yield self._tree.entry(name, int(lane)), self._state(slot), slot

    def _state(self, slot: Slot | None) -> State:
        if slot is None:
            return "pending"
        if slot.state == "dead":
            return "failed"
        if slot.state == "done":
            return "completed"
        if slot.state == "released":
            return "pending" if self._judge.due_at(slot) is None else "scheduled"
        return "leased"

    def _describe(self, entry: Entry, state: State, slot: Slot | None) -> TaskInfo | None:
        record = slot.record if slot else {}
        if state == "completed" and slot is not None:
            return self._of_witness(entry.name, slot.raw, self._tree.slot(entry.name, slot.generation))
        task = self._read(entry.path)
        if task is None:
            return None
        left = None
        if state == "leased" and slot is not None and slot.deadline is not None:
            if record.get("boot_id") == self._machine.boot_id:
                left = slot.deadline - self._clock.elapsed()
            elif (ends := moment(record.get("expiry_timestamp"))) is not None:
                left = ends - self._clock.wall()
        return TaskInfo(
            id=str(task.get("id") or id_of(entry.name) or plain(entry.name)),
            state=state,
            payload=task.get("payload"),
            priority=entry.lane,
            created_at=_text(task.get("created_at")),
            attempt=slot.attempt if slot else 0,
            token=token_of(entry.name, slot.generation) if slot and state == "leased" else None,
            epoch=epoch_of(entry.name),
            worker_id=_text(record.get("worker_id")) if state == "leased" else None,
            due_at=_text(record.get("due_at")) if state == "scheduled" else None,
            expires_in=left,
            claimed_at=_text(record.get("claimed_at")) if state == "leased" else None,
            error=_last_error(record) if state == "failed" else (slot.error if slot else None),
            errors=_dicts(record.get("errors")),
            path=self._tree.failed(entry.name) if state == "failed" else entry.path,
        )

    def _scheduled(self, path: str) -> TaskInfo | None:
        task = self._read(path)
        if task is None:
            return None
        name = task_name(path.rpartition("/")[2]) or ""
        return TaskInfo(
            id=str(task.get("id") or id_of(name) or plain(name)),
            state="scheduled",
            payload=task.get("payload"),
            priority=task.get("priority"),
            created_at=_text(task.get("created_at")),
            due_at=_text(task.get("due_at")),
            epoch=epoch_of(name),
            path=path,
        )

    def _witness(self, name: str) -> TaskInfo | None:
        path = self._tree.completed(name)
        raw = self._store.read(path, self._max_file)
        if raw == b"" and (facts := self._disk.look(path)) is not None and not facts.regular:
            return None  # a folder or a link proves nothing
        return None if raw is None else self._of_witness(name, raw, path)

    def _of_witness(self, name: str, raw: bytes, path: str) -> TaskInfo:
        record = parse(name, 0, raw).record
        try:
            result = decode_payload(record.get("result"), record.get("result_encoding", "json"), path)
        except InvalidTask:
            result = record.get("result")
        attempt = record.get("attempt")
        return TaskInfo(
            id=str(record.get("task_id") or id_of(name) or plain(name)),
            state="completed",
            created_at=_text(record.get("created_at")),
            attempt=attempt if isinstance(attempt, int) else 0,
            token=record.get("token"),
            worker_id=_text(record.get("worker_id")),
            claimed_at=_text(record.get("claimed_at")),
            completed_at=_text(record.get("completed_at")),
            result=result,
            cancelled=record.get("state") == "cancelled",
            expired=record.get("state") == "expired",
            epoch=epoch_of(name),
            path=path,
        )

    def _read(self, path: str) -> dict[str, Any] | None:
        raw = self._store.read(path, self._max_file)
        if raw is None:
            return None
        try:
            task = loads(raw, path)
            task["payload"] = decode_payload(task.get("payload"), task.get("encoding", "json"), path)
        except InvalidTask:
            return {}
        return task

    def _lanes(self) -> list[str]:
        return sorted((found.name for found in lanes_of(self._disk) if found.directory), reverse=True)

    def _done(self, shard: str, again: set[str]) -> set[str]:
        """Return what is completed in a shard: each id once, in its latest epoch, unless it is open again."""
        found, retired = self._names(f"{COMPLETED}/{shard}"), self._names(f"{RETIRED}/{shard}")
        latest: dict[str, int] = {}
        for name in (n for n in found if "~" in n):
            latest[plain(name)] = max(epoch_of(name), latest.get(plain(name), 0))
        if latest:
            found = {n for n in found if epoch_of(n) == latest.get(plain(n), 0)}
        return found - retired - {in_epoch(name, latest.get(name, 0)) for name in again}

    def _shards(self, folder: str) -> list[str]:
        return sorted(f.name for f in self._disk.scan(folder) if f.directory and self._tree.is_shard(f.name))

    def _names(self, folder: str) -> set[str]:
        return {name for f in self._disk.scan(folder) if f.regular and (name := task_name(f.name)) is not None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _dicts(value: Any) -> tuple[dict[str, Any], ...]:
    return tuple(e for e in value if isinstance(e, dict)) if isinstance(value, list) else ()


def _last_error(letter: dict[str, Any]) -> str | None:
    errors = _dicts(letter.get("errors"))
    return _text(errors[-1].get("error")) if errors else _text(letter.get("reason"))
