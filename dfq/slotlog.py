"""The lease protocol: a write-once log of slots per task (ADR 011).

Every decision is the creation of one exact name. The order of the calls below is the protocol; each of
them may be the last one that a process ever makes.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

from dfq.claim import Blocked, Claim, Gone, Raced
from dfq.codec import dumps, nonce
from dfq.deadletters import DeadLetters
from dfq.errors import InvalidTask, LeaseLost
from dfq.lease import Slot, lease_bytes, lease_record, parse, released, renewed
from dfq.ports import Clock, Machine
from dfq.records import is_stub, token_of, witness_of
from dfq.slots import Limits, Slots
from dfq.staleness import Judge
from dfq.stores.disk import DiskStore
from dfq.tree import Entry, Tree, id_of, is_key, parent, plain, slot_name

MAX_SLOTS = 10_000
CANCEL_RACES = 1000  # how often a cancel tries again because somebody else was faster
IN_THE_WAY = 60.0  # how often to look again at a task whose witness's name something else has


class SlotLog:
    """Claim, renew, give back, complete, bury, redrive and cancel tasks by their names."""

    def __init__(
        self,
        store: DiskStore,
        tree: Tree,
        judge: Judge,
        clock: Clock,
        machine: Machine,
        limits: Limits,
        on_done: Callable[[Entry], None] = lambda entry: None,
    ) -> None:
        self._store = store
        self._tree = tree
        self._judge = judge
        self._clock = clock
        self._machine = machine
        self._limits = limits
        self._on_done = on_done  # called when a witness is there for good; may be called again
        self._slots = Slots(store, tree, limits)
        self._letters = DeadLetters(self._slots, store, tree, clock, machine, limits)
        self.top = self._slots.top
        self.redrive = self._letters.redrive

    # -- claiming ----------------------------------------------------------------------------------

    def claim(self, entry: Entry, *, ttl: float, liveness: str = "lock") -> Claim | Blocked | Gone | Raced:
        """Claim a task if nobody holds it; on the way, finish what others left half done."""
        store, name = self._store, entry.name
        try:
            over = store.exists(entry.witness)
        except NotADirectoryError:  # in another's tree: this must not keep the other tasks waiting
            if self._limits.owned:
                raise
            return Blocked(self._clock.elapsed() + IN_THE_WAY, in_the_way=parent(entry.witness))
        if over:
            if self._sweep(entry):
                return Gone()
            return Blocked(self._clock.elapsed() + IN_THE_WAY, in_the_way=entry.witness)
        if not store.exists(entry.path):
            return Gone()
        top = self.top(name)
        if top is not None:
            if top.state == "done":
                self._finish(entry, top)
                return Gone()
            if top.state == "dead":
                self._letters.show(entry, top.generation)
                return Blocked(None, dead=True)
            if top.state == "released":
                until, held = self._judge.due_at(top), False
            else:
                until, held = self._judge.held_until(top, self._tree.slot(name, top.generation)), True
            if until is not None:
                return Blocked(until, held=held)
            reason = self._used_up(top)
            if reason is not None:
                if self._letters.bury(entry, top, reason):
                    return Blocked(None, dead=True)
                return Raced()
        return self._take(entry, top, ttl=ttl, liveness=liveness)

    def _used_up(self, top: Slot) -> str | None:
        """Return why a task may not run again; None if it may."""
        if top.attempt >= self._limits.max_attempts:
            return f"{top.attempt} of {self._limits.max_attempts} attempts failed"
        if top.generation >= MAX_SLOTS and not top.record.get("redriven"):
            return f"it was handed out {top.generation:,} times without being completed"
        return None

    def _take(
        self, entry: Entry, top: Slot | None, *, ttl: float, liveness: str, count: bool = True
    ) -> Claim | Blocked | Gone | Raced:
        store, name, clock = self._store, entry.name, self._clock
        generation = top.generation + 1 if top else 1
        attempt = (top.attempt if top else 0) + (1 if count else 0)
        started = clock.elapsed()
        record = lease_record(
            id_of(name) or plain(name),
            generation=generation,
            attempt=attempt,
            token=token_of(name, generation),
            nonce=nonce(),
            ttl=ttl,
            liveness=liveness,
            machine=self._machine,
            clock=clock,
        )
        slot = self._tree.slot(name, generation)
        hold = store.hold(slot, lease_bytes(record), locked=liveness == "lock")  # <- the claim happens here
        if hold is None:
            return Raced()
        try:
            # Between our first look and our slot the task may have been completed and its slots swept.
            if store.exists(entry.witness) or (raw := self._slots.read_task(entry)) is None:
                store.remove(slot)
                hold.close()
                return Gone()
            try:
                task = self._slots.parse(raw, entry)
            except InvalidTask as e:
                if not count:
                    task = {"id": None, "payload": None, "encoding": "json"}
                else:
                    data = lease_bytes(
                        released(record, attempt=attempt, delay=0, error=str(e), machine=self._machine, clock=clock)
                    )
                    hold.rewrite(data)
                    self._letters.bury(entry, parse(name, generation, data), str(e))
                    hold.close()
                    return Blocked(None, dead=True)
        except OSError:
            # It never ran: the slot is ours, so say so in it rather than let it count as an attempt.
            back = released(record, attempt=attempt - count, delay=0, error=None, machine=self._machine, clock=clock)
            with contextlib.suppress(OSError):
                hold.rewrite(lease_bytes(back))
            hold.close()
            raise
        except BaseException:
            hold.close()
            raise
        return Claim(entry, record, task, hold, clock, started)

    # -- holding -----------------------------------------------------------------------------------

    def heartbeat(self, claim: Claim, ttl: float | None = None) -> None:
        """Renew a lease. Raises LeaseLost."""
        started = self._clock.elapsed()
        self._still_mine(claim, "renewed")
        ttl = claim.ttl if ttl is None else ttl
        record = renewed(claim.record, ttl, self._clock)
        claim.hold.rewrite(lease_bytes(record))
        claim.record, claim.ttl, claim.beat_at = record, ttl, started

    def release(self, claim: Claim, *, error: str | None, delay: float, count: bool) -> bool:
        """Give a task back; return True if it is now a dead letter. Raises LeaseLost."""
        self._still_mine(claim, "given back")
        attempt = claim.attempt if count else claim.attempt - 1
        used_up = count and attempt >= self._limits.max_attempts
        record = released(
            claim.record,
            attempt=attempt,
            delay=0 if used_up else delay,
            error=error,
            machine=self._machine,
            clock=self._clock,
        )
        data = lease_bytes(record)
        claim.hold.rewrite(data)
        if used_up:
            top = parse(claim.entry.name, claim.generation, data)
            self._letters.bury(claim.entry, top, f"{attempt} of {self._limits.max_attempts} attempts failed")
        claim.end()
        return used_up

    def _still_mine(self, claim: Claim, what: str) -> None:
        self._in_time(claim, what)
        name, generation = claim.entry.name, claim.generation
        following = self._tree.slot(name, generation + 1)
        # A DONE slot of our own is that of an ack which an error cut short: it can be tried again.
        taken = self._store.exists(following) and not (what == "renewed" and self._is_mine(following, claim))
        if taken or not claim.hold.named():
            claim.lose()
            raise LeaseLost(f"task {name!r} cannot be {what}: generation {generation} was taken over")

    def _in_time(self, claim: Claim, what: str) -> None:
        """Raise LeaseLost for a claim that is over, or whose time is: then nothing is tried."""
        over = claim.ended
        if over or claim.ran_out:
            claim.lose()
            reason = "it is no longer held" if over else f"its lease of {claim.ttl:g} s ran out"
            raise LeaseLost(f"task {claim.entry.name!r} cannot be {what}: {reason}")

    def take_up(self, receipt: str) -> Claim:
        """Return the claim that a receipt stands for. Raises LeaseLost, InvalidTask."""
        generation_text, _, rest = receipt.partition(".")
        secret, _, rest = rest.partition(".")
        lane, _, name = rest.partition(".")
        if not (generation_text.isdecimal() and lane.isdecimal() and len(lane) == 1 and is_key(name) and secret):
            raise InvalidTask(f"{receipt[:60]!r} is not a receipt: use the one that the claim printed")
        generation = int(generation_text[:9])
        entry = self._tree.entry(name, int(lane))
        lost = LeaseLost(f"task {name!r}: generation {generation} is over or was taken over")
        hold = self._store.take_up(self._tree.slot(name, generation))
        if hold is None:
            raise lost
        found = self._slots.read(name, generation)
        raw = self._slots.read_task(entry)
        if self._store.exists(self._tree.slot(name, generation + 1)):
            raw = None
        if found is None or found.nonce != secret or found.state != "leased" or raw is None:
            hold.close()
            raise lost
        ttl = found.ttl or self._limits.lease
        now = self._clock.elapsed()
        same_boot = found.record.get("boot_id") == self._machine.boot_id
        beat_at = found.deadline - ttl if same_boot and found.deadline is not None else now
        record = found.record | {"generation": generation, "attempt": found.attempt, "ttl_s": ttl}
        record["token"] = token_of(name, generation)
        try:
            task = self._slots.parse(raw, entry)
        except InvalidTask:
            hold.close()
            raise
        return Claim(entry, record, task, hold, self._clock, beat_at)

    # -- completing --------------------------------------------------------------------------------

    def complete(self, claim: Claim, witness: dict[str, Any], *, retire: bool = False) -> None:
        """Complete a task: once this returns, it is done for good. Raises LeaseLost."""
        store, name = self._store, claim.entry.name
        self._in_time(claim, "acked")
        slot, done = self._tree.slot(name, claim.generation + 1), claim.entry.witness
        staged = store.stage(dumps(witness | {"nonce": claim.nonce}, "witness") + b"\n")
        try:
            if not store.name(staged, slot) and not self._is_mine(slot, claim):  # <- the completion
                claim.lose()
                raise LeaseLost(f"task {name!r} cannot be acked: generation {claim.generation} was taken over")
            if not store.name(staged, done) and not self._is_mine(done, claim):
                store.remove(slot)
                claim.lose()
                raise LeaseLost(f"task {name!r} cannot be acked: it is completed already")
            store.sync(done)
            if retire:  # only now: whatever is listed there loses its witness one day, so it must be this one
                store.name(staged, self._tree.retired(name))
        finally:
            store.drop(staged)
        if retire:
            store.sync(self._tree.retired(name))
            store.remove(self._tree.failed(name))
        self._on_done(claim.entry)
        self._remove_task(claim.entry)
        self._remove_slots(name, claim.generation + 1)
        claim.end()

    def cancel(self, entry: Entry) -> bool:
        """Take a task out of the queue whatever its state; False if it is over already."""
        for _ in range(CANCEL_RACES):
            if self._store.exists(entry.witness):
                self._sweep(entry)
                return False
            top = self.top(entry.name)
            if top is not None and top.state == "done":
                self._finish(entry, top)
                return False
            claim = self._take(entry, top, ttl=self._limits.lease, liveness="lock", count=False)
            if isinstance(claim, Gone):
                return False
            if isinstance(claim, Claim):
                return self._end_without_result(claim, "cancelled")
        raise OSError(errno.EBUSY, "too many others claim and release this task", entry.path)

    def expire(self, entry: Entry, old: Callable[[str], bool]) -> bool:
        """Take a dead task out of the queue if its death is old (by the path of its DEAD slot); False if it is not.

        Taking over exactly that slot is what keeps this from ending a task that was put back meanwhile.
        """
        top = self.top(entry.name)
        if top is None or top.state != "dead" or not old(self._tree.slot(entry.name, top.generation)):
            return False
        claim = self._take(entry, top, ttl=self._limits.lease, liveness="lock", count=False)
        return isinstance(claim, Claim) and self._end_without_result(claim, "expired")

    def _end_without_result(self, claim: Claim, state: str) -> bool:
        try:
            # A power cut must not leave the end without the takeover: a retry would fill the gap, and end the task.
            self._store.sync(self._tree.slot(claim.entry.name, claim.generation))
            self.complete(claim, witness_of(claim, self._machine, self._clock, state), retire=True)
        except LeaseLost:
            return False
        finally:
            claim.end()  # also when the disk failed: nobody else knows of this claim
        return True

    def _is_mine(self, path: str, claim: Claim) -> bool:
        # The reply to a link may have been lost, or an earlier ack of this claim was cut short by an error.
        return self._slots.carries(path, claim.nonce, "done")

    def mend(self, entry: Entry) -> None:
        """Finish what others left half done with a task, as a claim would on its way, and claim nothing."""
        if self._store.exists(entry.witness):
            self._sweep(entry)
            return
        top = self.top(entry.name)
        if top is not None and top.state == "done":
            self._finish(entry, top)
        elif self._store.exists(entry.path):  # else its dead letter may be all that is left of it
            if top is not None and top.state == "dead":
                self._letters.show(entry, top.generation)
            elif self._store.exists(self._tree.failed(entry.name)):
                self._letters.withdraw(entry)

    def finish(self, entry: Entry) -> None:
        """Finish the completion of a task, if it has happened and its worker did not get to the end of it."""
        top = self.top(entry.name)
        if top is not None and top.state == "done":
            self._finish(entry, top)

    def _finish(self, entry: Entry, top: Slot) -> None:
        """Finish a completion whose worker died after it had happened."""
        done, slot = entry.witness, self._tree.slot(entry.name, top.generation)
        # Its writer may not have asked for durability; we are about to remove the task, so we must.
        self._store.sync_content(slot)
        if self._store.name_again(slot, done) is None and not self._store.exists(done):
            return
        self._sweep(entry)

    def _sweep(self, entry: Entry) -> bool:
        """Remove what a completed task left behind, once its witness is sure to stay; False if there is none."""
        facts = self._store.disk.look(entry.witness)
        if facts is not None and not facts.regular:
            return False  # a folder, a link: it proves nothing, and the task must not vanish for it
        with self._store.standing(entry.witness) as stands:
            if stands:  # else it is being retired, with all that it guards
                self._store.sync(entry.witness)
                self._retire_stub(entry.name, entry.witness)  # before the entry goes: nobody comes by here again
                self._on_done(entry)
                self._remove_task(entry)
                self.sweep_slots(entry.name, entry.witness)
        return True

    def sweep_slots(self, name: str, witness: str) -> None:
        """Remove the slots (and the dead letter) of a task that has its witness, which the caller holds on to."""
        self._retire_stub(name, witness)
        # By listing: a worker that died while it took its slot back leaves one with none below it.
        listed = (slot_name(found.name) for found in self._store.disk.scan(parent(self._tree.slot(name, 1))))
        self._remove_slots(name, max((slot[1] for slot in listed if slot and slot[0] == name), default=0))
        self._store.remove(self._tree.failed(name))

    def is_retired(self, name: str) -> bool:
        """Tell whether the witness of a name is the very one that retired/ lists, and no later one."""
        limit = self._limits.max_file
        done, retired = (
            self._store.read(path, limit) for path in (self._tree.completed(name), self._tree.retired(name))
        )
        return done is not None and done == retired

    def unlist(self, name: str) -> None:
        """Remove the link that a crash left in retired/ of an earlier witness, so that no later one goes for it."""
        if not self.is_retired(name):
            self._store.sync_folder(parent(self._tree.completed(name)))  # it may be there because that is not sure yet
            self._store.remove(self._tree.retired(name))

    def _retire_stub(self, name: str, done: str) -> None:
        if not self._limits.owned:  # whatever another tool's witness says: it is not ours to remove
            return
        # Whoever left it only as a guard may have died between the links into completed/ and retired/.
        retired = self._tree.retired(name)
        if not self._store.exists(retired):
            if not is_stub(parse(name, 0, self._store.read(done, self._limits.max_file) or b"")):
                return
            self._store.name_again(done, retired)
        self._store.sync(retired)

    def _remove_task(self, entry: Entry) -> None:
        if self._limits.owned:
            self._store.remove(entry.path)

    def _remove_slots(self, name: str, highest: int) -> None:
        for generation in range(highest, 0, -1):
            self._store.remove(self._tree.slot(name, generation))
