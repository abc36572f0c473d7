"""Holding files against the format, one folder or one shard at a time (ADR 012). It changes nothing.

A worker may be in the middle of something: whoever asks looks twice before believing what is said here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

from dfq.codec import loads
from dfq.errors import InvalidTask
from dfq.lease import Slot, parse
from dfq.names import encode
from dfq.ports import Clock, Facts, Found
from dfq.providers.filesystem.faults import Repair, Suspect, suspect
from dfq.providers.filesystem.housekeeping import TEMPORARY
from dfq.records import read_task, token_of
from dfq.slotlog import SlotLog
from dfq.stores.disk import DiskStore
from dfq.tree import Entry, Tree, epoch_of, id_of, in_epoch, plain

T = TypeVar("T")
WORLD_WRITABLE = 0o002
CUT_ID = 20  # a lease may keep so much of a long id, and no less


class Audit:
    """One look at a part of a queue. Make a new one for each look."""

    def __init__(self, store: DiskStore, tree: Tree, log: SlotLog, clock: Clock, max_file: int) -> None:
        self._store = store
        self._disk = store.disk
        self._tree = tree
        self._log = log
        self._clock = clock
        self._max_file = max_file
        self.suspects: list[Suspect] = []
        self._names_of: dict[int, list[str]] = {}  # file -> its names that were seen
        self._links: dict[int, int] = {}

    def note(self, code: str, path: str, found: str, repair: Repair | None = None) -> None:
        self.suspects.append(suspect(code, path, found, repair))

    # -- what lies in a folder ---------------------------------------------------------------------

    def folder(self, path: str) -> bool:
        """Tell whether something is a folder that can be looked into, and note what is wrong with it."""
        facts = self._disk.look(path)
        if facts is None:
            return False
        if not facts.directory:
            self.note("not-a-folder", path, f"a {'file' if facts.regular else 'link or special file'} in its place")
            return False
        self._check_mode(path, facts)
        return True

    def listing(self, path: str) -> list[Found]:
        try:
            found = self._disk.scan(path, times=True)
        except OSError as e:
            self.note("unreadable", path, e.strerror or str(e))
            return []
        return sorted(found, key=lambda f: f.name)

    def files(self, folder: str, key_of: Callable[[str], T | None]) -> list[tuple[str, T]]:
        """Return (path, key) of each file that is ours by its name; note the others."""
        ours = []
        for found in self.listing(folder):
            path, key = f"{folder}/{found.name}", key_of(found.name)
            if key is None or found.name.startswith("."):
                self.stranger(path, found)
            elif not found.regular:
                self.note("not-a-file", path, f"a {_kind(found)} where a file belongs")
            elif self.file(path):
                ours.append((path, key))
        return ours

    def file(self, path: str) -> bool:
        """Note who may write to a file, and remember how many names it has; False if it is gone."""
        facts = self._disk.look(path)
        if facts is None:
            return False
        self._check_mode(path, facts)
        if facts.inode:
            self._names_of.setdefault(facts.inode, []).append(path)
            self._links[facts.inode] = facts.links
        return True

    def stranger(self, path: str, found: Found) -> None:
        """Note something that is none of ours; what is hidden and young is somebody's work in progress."""
        if found.name.startswith("."):
            age = self._clock.wall() - found.mtime_ns / 1e9
            if age >= TEMPORARY:
                self.note("stray", path, f"a hidden {_kind(found)}, {age / 3600:.0f} h old")
        elif found.regular and found.name.endswith((".json", ".lease")) and "/" in path:
            self.note("bad-name", path, "no task has this name")
        else:
            self.note("stray", path, f"a {_kind(found)} that is none of the queue's")

    def check_links(self, temporary: dict[int, int], more: Callable[[str], int]) -> None:
        """Note files with more names than were seen, in the queue's own folder (`temporary`) or elsewhere (`more`)."""
        for inode, names in self._names_of.items():
            known = len(names) + temporary.get(inode, 0)
            if self._links[inode] > known:
                known += more(names[0])
            if self._links[inode] > known:
                self.note("extra-link", names[0], f"{self._links[inode]} names, of which the queue has {known}")

    def _check_mode(self, path: str, facts: Facts) -> None:
        if facts.mode & WORLD_WRITABLE:
            self.note("world-writable", path, f"mode {facts.mode:o}")

    def content(self, path: str) -> bytes | None:
        """Return what a file says; None if it is gone or cannot be read."""
        try:
            raw = self._store.read(path, self._max_file)
        except OSError as e:
            self.note("unreadable", path, e.strerror or os.strerror(e.errno or 0))
            return None
        if raw == b"" and (facts := self._disk.look(path)) is not None and facts.size > 0:
            self.note("unreadable", path, "it may not be opened")
            return None
        return raw

    def record(self, path: str) -> dict[str, Any] | None:
        """Return the JSON of a file; None if it is gone or has none."""
        raw = self.content(path)
        try:
            return None if raw is None else loads(raw, path)
        except InvalidTask:
            return None

    # -- tasks -------------------------------------------------------------------------------------

    def check_task(self, entry: Entry, *, buried: bool = False) -> dict[str, Any] | None:
        """Note what is wrong with a task's file; return what it says, None if it cannot be read."""
        raw = self.content(entry.path)
        if raw is None:
            return None
        try:
            task = read_task(raw, entry, self._max_file)
        except InvalidTask as e:
            if not buried:  # else the dead letter says what is wrong with it
                self.note("bad-task", entry.path, str(e).removeprefix(f"{entry.path}: "))
            return None
        lane, epoch = task.get("priority"), task.get("epoch")
        if is_int(lane) and 0 <= lane <= 9 and lane != entry.lane:
            self.note("wrong-lane", entry.path, f"field 'priority' is {lane}")
        if is_int(epoch) and epoch != epoch_of(entry.name):
            self.note("wrong-epoch", entry.path, f"field 'epoch' is {str(epoch)[:20]}")
        return task

    def check_duplicate(
        self, path: str, record: dict[str, Any] | None, other: str, others: dict[str, Any] | None
    ) -> None:
        """Note that one id waits in two places."""
        same = record is not None and others is not None and _payload(record) == _payload(others)
        found = f"{other} has the same id, with {'the same' if same else 'another'} payload"
        self.note("duplicate-copy" if same else "duplicate", path, found)

    def check_epoch(self, entry: Entry) -> None:
        """Note that a task which was put back lacks the witnesses that it counts from."""
        epoch = epoch_of(entry.name)
        if epoch and not self._store.exists(self._tree.completed(plain(entry.name))):
            self.note("no-anchor", entry.path, "the witness of epoch 0 is gone")
        elif epoch and not self._store.exists(self._tree.completed(in_epoch(entry.name, epoch - 1))):
            self.note("epoch-gap", entry.path, f"the witness of epoch {epoch - 1} is gone")

    # -- witnesses ---------------------------------------------------------------------------------

    def witness(self, name: str, path: str) -> Slot | None:
        """Return a witness that proves what it should; note what is wrong with any other."""
        raw = self.content(path)
        if raw is None:
            return None
        witness = parse(name, 0, raw)
        record = witness.record
        if witness.state != "done":
            self.note("bad-witness", path, self._why_not(raw, path))
            return None
        generation, epoch = record.get("generation"), record.get("epoch", epoch_of(name))
        wrong = None
        if not speaks_of(record.get("task_id"), name):
            wrong = f"field 'task_id' is {str(record.get('task_id'))[:60]!r}"
        elif epoch != epoch_of(name):
            wrong = f"field 'epoch' is {str(epoch)[:20]}"
        elif is_int(generation) and record.get("token", token_of(name, generation)) != token_of(name, generation):
            wrong = f"field 'token' does not fit generation {generation}"
        if wrong is not None:
            self.note("witness-contradicts", path, wrong)
            return None
        return witness

    def _why_not(self, raw: bytes, path: str) -> str:
        if len(raw) > self._max_file:
            return f"the file has over {self._max_file:,} bytes (the limit follows from max_payload)"
        try:
            return f"field 'state' is {str(loads(raw, path).get('state'))[:40]!r}"
        except InvalidTask as e:
            return str(e).removeprefix(f"{path}: ")

    def proven(self, name: str) -> bool | None:
        """Tell whether a name has a witness; None if it has one that proves nothing."""
        path = self._tree.completed(name)
        if not self._store.exists(path):
            return False
        other = Audit(self._store, self._tree, self._log, self._clock, self._max_file)
        return True if other.witness(name, path) is not None else None


def _kind(found: Found) -> str:
    return "file" if found.regular else "folder" if found.directory else "link or special file"


def speaks_of(task_id: Any, name: str) -> bool:
    """Tell whether a record's id is that of a name; a lease may have only the beginning of a long one."""
    if not isinstance(task_id, str):
        return False
    known = id_of(name) or plain(name)
    if task_id in (known, plain(name)):
        return True
    begun = task_id.removesuffix("…")
    if len(begun) >= CUT_ID and known.startswith(begun):
        return True
    try:
        return encode(task_id) == plain(name)
    except InvalidTask:
        return False


def _payload(record: dict[str, Any]) -> tuple[Any, Any]:
    return record.get("payload"), record.get("encoding", "json")


def is_int(value: Any) -> TypeGuard[int]:
    """Tell whether a field is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)
