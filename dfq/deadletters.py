"""Dead letters: tasks that used up their attempts, and the way back (ADR 011)."""

from __future__ import annotations

from typing import Any

from dfq.codec import dumps, nonce
from dfq.errors import InvalidTask
from dfq.lease import Slot, lease_bytes, lease_record, parse, released
from dfq.ports import Clock, Machine
from dfq.records import errors_of, letter_of, token_of
from dfq.slots import Limits, Slots
from dfq.stores.disk import DiskStore
from dfq.tree import FAILED, Entry, Tree, id_of, parent, plain

MAX_ERRORS = 100


class DeadLetters:
    """Buries tasks on top of their slots, shows them in failed/, and puts them back."""

    def __init__(
        self, slots: Slots, store: DiskStore, tree: Tree, clock: Clock, machine: Machine, limits: Limits
    ) -> None:
        self._slots = slots
        self._store = store
        self._tree = tree
        self._clock = clock
        self._machine = machine
        self._limits = limits

    def bury(self, entry: Entry, top: Slot, reason: str) -> bool:
        """Make a task a dead letter with all its errors; False if somebody else did something with it meanwhile."""
        store, name = self._store, entry.name
        raw = self._slots.read_task(entry)
        if raw is None:
            return False
        try:
            task = self._slots.parse(raw, entry)
        except InvalidTask as e:
            task, reason = {"id": None, "payload": None, "encoding": "json"}, f"{e}; fix the file, then retry"
        letter = letter_of(task, entry, top, reason, self._errors(name, top), self._machine, self._clock)
        letter["nonce"] = nonce()
        slot = self._tree.slot(name, top.generation + 1)
        try:
            data = dumps(letter, "dead letter")
        except InvalidTask:  # the task was checked, so it is what a lease of another writer says
            data = dumps(letter | {"errors": []}, "dead letter")
        staged = store.stage(data + b"\n")
        try:
            if not store.name(staged, slot) and not self._slots.carries(slot, letter["nonce"]):
                return False
        finally:
            store.drop(staged)
        if store.exists(entry.witness):  # completed and swept since we looked
            store.remove(slot)
            return False
        return self.show(entry, top.generation + 1)

    def show(self, entry: Entry, generation: int) -> bool:
        """Link a DEAD slot into failed/; False if it is not the top slot.

        It was redriven in the meantime, or a power cut took a slot and left the ones above it.
        """
        store, name = self._store, entry.name
        failed = self._tree.failed(name)
        shown = store.read(failed, self._limits.max_file)
        if shown is not None:
            if parse(name, 0, shown).record.get("generation") == generation:
                return True
            store.remove(failed)  # of an earlier death: whoever redrove it died before removing this
        slot = self._tree.slot(name, generation)
        store.sync(slot)  # the letter must not outlive its slot, whoever made that
        store.name_again(slot, failed)  # whoever meets the slot does so again, should a power cut undo it
        # In this order: slots are swept only once there is a witness.
        if store.exists(self._tree.slot(name, generation + 1)) or store.exists(entry.witness):
            store.remove(failed)
            return False
        return True

    def _errors(self, name: str, top: Slot) -> list[dict[str, Any]]:
        errors: list[dict[str, Any]] = []
        for generation in range(max(1, top.generation - MAX_ERRORS + 1), top.generation + 1):
            slot = top if generation == top.generation else self._slots.read(name, generation)
            if slot is None:
                continue
            # An earlier death has listed all that went wrong before it.
            errors = errors_of(slot) if slot.state == "dead" else errors + errors_of(slot)
        return errors[-MAX_ERRORS:]

    def redrive(self, entry: Entry) -> bool:
        """Put a dead task back with all its attempts; False if it is not dead."""
        store, name = self._store, entry.name
        top = self._slots.top(name)
        if top is not None and top.record.get("redriven") and store.exists(self._tree.failed(name)):
            # Somebody died in the middle of it, and no worker would look before its next round.
            store.sync(self._tree.slot(name, top.generation))
            self._put_back(entry)
            return True
        if top is None or top.state != "dead" or not store.exists(entry.path):
            return False
        record = lease_record(
            id_of(name) or plain(name),
            generation=top.generation + 1,
            attempt=0,
            token=token_of(name, top.generation + 1),
            nonce=nonce(),
            ttl=self._limits.lease,
            liveness="ttl",
            machine=self._machine,
            clock=self._clock,
        )
        record = released(record, attempt=0, delay=0, error=None, machine=self._machine, clock=self._clock)
        record["redriven"] = True
        slot = self._tree.slot(name, top.generation + 1)
        staged = store.stage(lease_bytes(record))
        try:
            if not store.name(staged, slot) and not self._slots.carries(slot, record["nonce"]):
                return False
        finally:
            store.drop(staged)
        if store.exists(entry.witness):  # cancelled and swept since we looked
            store.remove(slot)
            store.remove(self._tree.failed(name))
            return False
        store.sync(slot)
        self._put_back(entry)
        return True

    def _put_back(self, entry: Entry) -> None:
        self.withdraw(entry)
        self._store.disk.touch(parent(entry.path) if self._limits.owned else FAILED)

    def withdraw(self, entry: Entry) -> None:
        """Take a task that is dead no more out of failed/."""
        self._store.remove(self._tree.failed(entry.name))
        newer = self._slots.top(entry.name)
        if newer is not None and newer.state == "dead":  # died again meanwhile: that letter may be the one we removed
            self.show(entry, newer.generation)
