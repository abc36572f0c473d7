"""The way in: from what a user pushes to a file in the frontier (or, with a delay, in the schedule)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dfq import checks
from dfq.codec import dumps, encode_payload, iso, loads, new_id, nonce
from dfq.errors import InvalidTask
from dfq.lease import not_before
from dfq.names import encode
from dfq.ports import Clock, Machine
from dfq.providers.filesystem.view import View
from dfq.queue import Push
from dfq.stores.disk import DiskStore
from dfq.tree import SCHEDULED, Entry, Tree, in_epoch, parent

FEW = 8  # up to which a flush per task is cheaper than one of the whole filesystem


@dataclass(frozen=True, slots=True)
class Item:
    """A task on its way in."""

    push: Push
    id: str
    entry: Entry
    path: str  # where it goes first: the entry's own path, or one in scheduled/
    data: bytes
    nonce: str

    @property
    def named(self) -> bool:
        """True if its id was given, so that it may be there already."""
        return self.push.id is not None


class Intake:
    """Writes tasks, each under a name that did not exist before."""

    def __init__(
        self,
        store: DiskStore,
        tree: Tree,
        view: View,
        clock: Clock,
        machine: Machine,
        *,
        max_payload: int,
        max_file: int,
    ) -> None:
        self._store = store
        self._tree = tree
        self._view = view
        self._clock = clock
        self._machine = machine
        self._max_payload = max_payload
        self._max_file = max_file

    def prepare(self, push: Push, epoch: int = 0) -> Item:
        """Return a task ready to be written. Raises InvalidTask, PayloadTooLarge."""
        priority, delay = checks.check_priority(push.priority), checks.check_delay(push.delay)
        value, encoding = encode_payload(push.payload, self._max_payload)
        task_id = new_id() if push.id is None else push.id
        name, secret, wall = in_epoch(encode(task_id), epoch), nonce(), self._clock.wall()
        record: dict[str, Any] = {
            "id": task_id,
            "payload": value,
            "encoding": encoding,
            "priority": priority,
            "epoch": epoch,
            "created_at": iso(wall),
            "nonce": secret,
        }
        entry = self._tree.entry(name, priority)
        path = entry.path
        if delay > 0:
            path = self._tree.scheduled(name, wall + delay, delay)
            record |= {
                "due_at": iso(wall + delay),
                "delay_s": delay,
                "boot_id": self._machine.boot_id,
                "deadline_boottime": not_before(self._clock.elapsed() + delay),
            }
        return Item(push, task_id, entry, path, dumps(record, "payload") + b"\n", secret)

    def write(self, items: list[Item]) -> list[Item]:
        """Write tasks and return those whose id was taken; the others are safe now, as durability asks."""
        # For many, two flushes of the whole filesystem do for all: contents first, then names.
        together = self._store.durable and len(items) > FEW
        stage = DiskStore(self._store.disk, durable=False).stage if together else self._store.stage
        taken: list[Item] = []
        names: set[str] = set()
        staged: list[tuple[Item, int]] = []
        try:
            for item in items:
                if item.named and (item.entry.name in names or self._is_there(item.entry.name)):
                    taken.append(item)
                else:
                    names.add(item.entry.name)
                    staged.append((item, stage(item.data)))
            if together:
                self._store.disk.sync_all()
            taken += [item for item, fd in staged if not self._name(item, fd, sync=not together)]
            if together:
                self._store.disk.sync_all()
        finally:
            for _, fd in staged:
                self._store.drop(fd)
        return taken

    def _is_there(self, name: str) -> bool:
        return self._store.exists(self._tree.completed(name)) or self._view.is_open(name)

    def _name(self, item: Item, staged: int, *, sync: bool) -> bool:
        store = self._store
        if not store.name(staged, item.path) and not self._is_ours(item):
            return False
        if sync:
            store.sync(item.path)
        if item.named and store.exists(item.entry.witness) and not self._completed_ours(item):
            store.remove(item.path)  # another's of the same id was completed while we were writing
            return False
        if item.named and sync and store.exists(self._tree.retired(item.entry.name)):
            # Its last witness went a moment ago. Should a power cut bring it back, it would take our task for its own.
            store.sync_folder(parent(item.entry.witness))
        if item.path != item.entry.path:
            store.disk.touch(SCHEDULED)
        return True

    def _completed_ours(self, item: Item) -> bool:
        # A worker may be that fast: then what is completed is what we pushed.
        try:
            witness = loads(self._store.read(item.entry.witness, self._max_file) or b"", item.entry.witness)
        except InvalidTask:
            return False
        return witness.get("task_nonce") == item.nonce

    def _is_ours(self, item: Item) -> bool:
        # The reply to our link may have been lost on the way; then what is there carries our nonce.
        raw = self._store.read(item.path, self._max_file)
        try:
            return raw is not None and loads(raw, item.path).get("nonce") == item.nonce
        except InvalidTask:
            return False
