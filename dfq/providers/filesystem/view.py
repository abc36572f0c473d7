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
from dfq.queue import Counts, State, TaskInfo, TaskState
from dfq.records import token_of
from dfq.slotlog import SlotLog
from dfq.staleness import Judge, moment
from dfq.stalled import Pulse, Stall
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
        pulse: Pulse,
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
        self._pulse = pulse
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
        again |= self._marked(scheduled)
        tally["completed"] += sum(1 for _ in self._completed(again))
        return Counts(**tally)

    def tasks(self, state: State | None) -> Iterator[TaskInfo]:
        """Iterate over tasks; those that go away meanwhile are left out."""
        if state != "completed":
            for entry, found, slot in self._open_tasks(slots_only=state in ("leased", "failed")):
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
            for name in self._completed(self._put_back()):
                info = self._witness(name)
                if info is not None:
                    yield info

    def states(self, prefix: str) -> Iterator[TaskState]:
        """Iterate over ids and states. Only the file of an id too long for its name is read, and leases."""
        for entry, state, slot in self._open_tasks():
            task_id = id_of(entry.name) or self.id_of(entry)
            if task_id.startswith(prefix):
                yield TaskState(task_id, state, self._stall(state, slot) is not None)
        for path in self._schedule.paths():
            name = task_name(path.rpartition("/")[2]) or ""
            task_id = id_of(name) or str((self._read(path) or {}).get("id") or plain(name))
            if task_id.startswith(prefix):
                yield TaskState(task_id, "scheduled")
        for name in self._completed(self._put_back()):
            task_id = id_of(name) or self._id_of_witness(name)
            if task_id.startswith(prefix):
                yield TaskState(task_id, "completed")

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

    def withdraw(self, name: str) -> None:
        """Remove what is left of a task that is over, in the schedule and in the frontier."""
        for path in self._schedule.places(name):
            self._schedule.withdraw(path)
        for entry in self.places(name):
            self._store.remove(entry.path)

    def folders(self, shard: str) -> list[str]:
        """Return the folders in which tasks of a shard wait, or are leased."""
        return [f"{LEASES}/{shard}", *(f"{FRONTIER}/{lane}/{shard}" for lane in self._lanes())]

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

    def _open_tasks(self, *, slots_only: bool = False) -> Iterator[tuple[Entry, State, Slot | None]]:
        """Iterate over what is in the frontier; slots_only leaves out what was never claimed, and is quicker."""
        lanes = self._lanes()
        shards = {lane: set(self._shards(f"{FRONTIER}/{lane}")) for lane in lanes}
        for shard in sorted(set().union(*shards.values())) if shards else []:
            seen: set[str] = set()
            slots = {found[0] for f in self._disk.scan(f"{LEASES}/{shard}") if (found := slot_name(f.name)) is not None}
            if slots_only and not slots:
                continue
            done = self._names(f"{COMPLETED}/{shard}")
            for lane in lanes:
                folder = f"{FRONTIER}/{lane}/{shard}"
                names = self._names(folder) if shard in shards[lane] else set()
                names = names & slots if slots_only else names
                for name in sorted(names - seen - done):
                    seen.add(name)
                    slot = self._log.top(name) if name in slots else None
                    yield self._tree.entry(name, int(lane)), self._state(slot), slot

    def _completed(self, again: set[str]) -> Iterator[str]:
        """Iterate over the names of what is completed and was not cancelled, nor put back."""
        for shard in self._shards(COMPLETED):
            yield from sorted(self._done(shard, again))

    def _put_back(self) -> set[str]:
        """Return the plain names of what is open in a later epoch."""
        listed = [
            f.name
            for lane in self._lanes()
            for shard in self._shards(f"{FRONTIER}/{lane}")
            for f in self._disk.scan(f"{FRONTIER}/{lane}/{shard}")
        ]
        return self._marked(listed + self._schedule.paths())

    @staticmethod
    def _marked(paths: list[str]) -> set[str]:
        names = (task_name(path.rpartition("/")[2]) for path in paths if "~" in path)
        return {plain(name) for name in names if name and epoch_of(name)}

    def _stall(self, state: State, slot: Slot | None) -> Stall | None:
        if state != "leased" or slot is None:
            return None
        stall = self._pulse.feel(slot, self._tree.slot(slot.name, slot.generation))
        if stall is None:
            return None
        # Between our two looks its holder may have renewed it or given it back, which frees the lock.
        again = self._log.top(slot.name)
        same = again is not None and (again.generation, again.raw) == (slot.generation, slot.raw)
        return stall if same else None

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
        stall = self._stall(state, slot)
        return TaskInfo(
            id=id_of(entry.name) or str(task.get("id") or plain(entry.name)),
            state=state,
            payload=task.get("payload"),
            priority=entry.lane,
            created_at=_text(task.get("created_at")),
            attempt=slot.attempt if slot else 0,
            token=token_of(entry.name, slot.generation) if slot and state == "leased" else None,
            epoch=epoch_of(entry.name),
            worker_id=_text(record.get("worker_id")) if state == "leased" else None,
            host=_text(record.get("host")) if state == "leased" else None,
            due_at=_text(record.get("due_at")) if state == "scheduled" else None,
            expires_in=left,
            claimed_at=_text(record.get("claimed_at")) if state == "leased" else None,
            error=_last_error(record) if state == "failed" else (slot.error if slot else None),
            errors=_dicts(record.get("errors")),
            path=self._tree.failed(entry.name) if state == "failed" else entry.path,
            stalled=stall.why if stall else None,
            silent_since=stall.since if stall else None,
            outlook=stall.outlook if stall else None,
        )

    def _scheduled(self, path: str) -> TaskInfo | None:
        task = self._read(path)
        if task is None:
            return None
        name = task_name(path.rpartition("/")[2]) or ""
        return TaskInfo(
            id=id_of(name) or str(task.get("id") or plain(name)),
            state="scheduled",
            payload=task.get("payload"),
            priority=_whole(task.get("priority")),
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

    def _id_of_witness(self, name: str) -> str:
        info = self._witness(name)
        return name if info is None else info.id

    def _of_witness(self, name: str, raw: bytes, path: str) -> TaskInfo:
        record = parse(name, 0, raw).record
        try:
            result = decode_payload(record.get("result"), record.get("result_encoding", "json"), path)
        except InvalidTask:
            result = record.get("result")
        attempt = record.get("attempt")
        return TaskInfo(
            id=id_of(name) or str(record.get("task_id") or plain(name)),
            state="completed",
            created_at=_text(record.get("created_at")),
            attempt=attempt if isinstance(attempt, int) else 0,
            token=_whole(record.get("token")),
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


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _dicts(value: Any) -> tuple[dict[str, Any], ...]:
    return tuple(e for e in value if isinstance(e, dict)) if isinstance(value, list) else ()


def _last_error(letter: dict[str, Any]) -> str | None:
    errors = _dicts(letter.get("errors"))
    return _text(errors[-1].get("error")) if errors else _text(letter.get("reason"))
