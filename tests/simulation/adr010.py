"""The protocol as ADR 010 has it: one lease file per task; a stale one is deleted and created anew."""

from __future__ import annotations

from typing import Any

from dfq.claim import Blocked, Claim, Gone, Raced
from dfq.codec import dumps
from dfq.errors import LeaseLost
from dfq.lease import lease_bytes, lease_record
from dfq.ports import Clock, Machine
from dfq.slots import Limits
from dfq.staleness import Judge
from dfq.stores.disk import DiskStore
from dfq.tree import Entry, Tree


class DeleteAndCreate:
    """Claim, renew and complete by one name."""

    def __init__(
        self, store: DiskStore, tree: Tree, judge: Judge, clock: Clock, machine: Machine, limits: Limits
    ) -> None:
        self._store = store
        self._tree = tree
        self._clock = clock
        self._machine = machine
        self._claims = 0

    def claim(self, entry: Entry, *, ttl: float) -> Claim | Blocked | Gone | Raced:
        lease = self._tree.slot(entry.name, 1)
        if self._store.exists(self._tree.completed(entry.name)) or not self._store.exists(entry.path):
            return Gone()
        if self._store.exists(lease):
            self._store.remove(lease)  # judged stale; but whose is it by now?
        self._claims += 1
        secret = f"{self._machine.worker_id}.{self._claims}"
        record = lease_record(
            entry.name,
            generation=1,
            attempt=1,
            token=1,
            nonce=secret,
            ttl=ttl,
            liveness="lock",
            machine=self._machine,
            clock=self._clock,
        )
        hold = self._store.hold(lease, lease_bytes(record))
        if hold is None:
            return Raced()
        return Claim(entry, record, {"id": entry.name}, hold, self._clock, self._clock.elapsed())

    def heartbeat(self, claim: Claim) -> None:
        hold = self._store.take_up(self._tree.slot(claim.entry.name, 1))
        if hold is None:
            raise LeaseLost("the lease is gone")
        hold.rewrite(lease_bytes(claim.record))
        hold.close()

    def complete(self, claim: Claim, witness: dict[str, Any]) -> None:
        if self._store.read(self._tree.slot(claim.entry.name, 1), 65536) is None:
            raise LeaseLost("the lease is gone")
        staged = self._store.stage(dumps(witness | {"nonce": claim.nonce}))
        self._store.remove(self._tree.completed(claim.entry.name))
        self._store.name(staged, self._tree.completed(claim.entry.name))
        self._store.drop(staged)
        self._store.remove(claim.entry.path)
        self._store.remove(self._tree.slot(claim.entry.name, 1))
        claim.end()
