"""Pushing an id that was used before: it is refused, skipped, put back, or begins its next epoch (ADR 017)."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep

from dfq.codec import decode_payload, loads
from dfq.errors import QueueUnavailable, TaskExists, TaskNotFound
from dfq.providers.filesystem.intake import Intake, Item
from dfq.providers.filesystem.view import View
from dfq.queue import IfExists, TaskInfo
from dfq.slotlog import SlotLog
from dfq.stores.disk import DiskStore
from dfq.tree import Tree, epoch_of, in_epoch

PAUSE = 0.05  # seconds between two looks at an id that is being retired
RACES = 20  # how often to look again because somebody else did something with the same id


class Again:
    """Decides what a push of a used id means, by what became of it."""

    def __init__(
        self,
        intake: Intake,
        view: View,
        log: SlotLog,
        store: DiskStore,
        tree: Tree,
        retry: Callable[[str], object],
        where: str,
    ) -> None:
        self._intake = intake
        self._view = view
        self._log = log
        self._store = store
        self._tree = tree
        self._retry = retry  # by id
        self._where = where

    def push(self, item: Item, if_exists: IfExists) -> bool:
        """Push an item whose id is taken; False if it is skipped. Raises TaskExists."""
        for _ in range(RACES):
            try:
                name = self._next(item, if_exists)
            except TaskNotFound:  # it moved on while we looked
                continue
            if name is None:
                return if_exists != "skip"
            if self._begin(self._intake.prepare(item.push, epoch_of(name))):
                return True
        raise QueueUnavailable(f"task {item.id!r} is being pushed by too many at once: try again")

    def _next(self, item: Item, if_exists: IfExists) -> str | None:
        """Return the name to push an id under; None if nothing is to be pushed."""
        try:
            info = self._view.get(item.id)
        except TaskNotFound:  # retired meanwhile
            self._refuse_strange_witness(item)
            return in_epoch(item.entry.name, 0)
        if info.state == "completed" and (entry := self._view.find(in_epoch(item.entry.name, info.epoch))):
            self._log.finish(entry)  # the next epoch counts from its witness
        following = in_epoch(item.entry.name, info.epoch + 1)
        if info.ended_without_result:
            return following
        if if_exists == "skip":
            return None
        if if_exists == "rerun" and info.state == "completed":
            return following
        if if_exists == "rerun" and info.state == "failed":
            if self._same_payload(item, info):
                self._retry(item.id)
                return None
            entry = self._view.find(in_epoch(item.entry.name, info.epoch))
            # Over exactly this death: it may have been put back, and run, since we looked.
            if entry is None or not self._log.expire(entry, lambda slot: True):
                raise TaskNotFound(item.id)
            return following
        hint = "use if_exists='skip', or 'rerun' to run it again once it is over"
        raise TaskExists(f"task {item.id!r} is already {info.state}: {hint}", task_id=item.id, state=info.state)

    def _begin(self, item: Item) -> bool:
        """Write a task under a name of its own; False if that was taken meanwhile.

        While an id has later epochs, the witness of its first tells every push so: nobody may retire it now.
        """
        first = self._tree.completed(in_epoch(item.entry.name, 0))
        if first == item.entry.witness:
            return not self._intake.write([item])
        with self._store.standing(first) as stands:
            if stands:
                return not self._intake.write([item])
        sleep(PAUSE)  # it is being retired: soon the id is a new one
        return False

    def _refuse_strange_witness(self, item: Item) -> None:
        first = self._tree.completed(in_epoch(item.entry.name, 0))
        facts = self._store.disk.look(first)
        if facts is not None and not facts.regular:
            reason = f"{self._where}/{first} is no file, where its witness would be: remove it"
            raise TaskExists(f"task {item.id!r} cannot be pushed: {reason}", task_id=item.id)

    @staticmethod
    def _same_payload(item: Item, info: TaskInfo) -> bool:
        pushed = loads(item.data, item.path)
        return bool(decode_payload(pushed["payload"], pushed["encoding"], item.path) == info.payload)
