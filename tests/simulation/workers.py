"""What simulated processes do: scripts of operations over the production SlotLog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from checkers import Checker
from simdisk import SimClock, SimDisk

from dfq.claim import Blocked, Claim
from dfq.codec import dumps
from dfq.config import Settings
from dfq.deadletters import DeadLetters
from dfq.errors import LeaseLost, QueueUnavailable, TaskExists, TaskNotFound
from dfq.lease import Slot
from dfq.names import encode
from dfq.ports import Machine
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.schedule import Schedule
from dfq.queue import IfExists, Push, Task
from dfq.records import witness_of
from dfq.renewal import Renewer
from dfq.slotlog import SlotLog
from dfq.slots import Limits, Slots
from dfq.staleness import Judge
from dfq.stores.disk import DiskStore, Hold
from dfq.tree import FRONTIER, Entry, Tree, task_name
from dfq.work.settle import settle
from dfq.work.slot import Outcome

TASK = "t"
LANE = 5
TTL = 60.0
TREE = Tree(1)
ENTRY = TREE.entry(TASK, LANE)
FORGETFUL = (("retain_completed", 7200.0), ("retain_failed", 7200.0))


class Impatient(Judge):
    """Finds every lease stale, so that each holder may be a zombie at any moment."""

    def held_until(self, slot: Slot, path: str) -> float | None:
        return None

    def due_at(self, slot: Slot) -> float | None:
        return None


@dataclass(frozen=True)
class Scenario:
    """A few processes at one task. `before` runs alone; `scripts` run against each other. A script is words.

    Over the slot log: claim, beat, ack, ackd (keeping no witness), nack, give (back, not counted), cancel, redrive,
    expire. Over the queue: push, rerun, take (poll), renew, done, fail, release, retry, drop (cancel), purge, pause,
    resume. For a delayed task: schedule, promote (it is due), withdraw (cancel it wherever it is) and
    withdraw_in_place (as one must not). Of housekeeping: age (hours pass), tidy, fsck (with repair). And rest.
    """

    name: str
    scripts: tuple[str, ...]
    before: str = "push"
    max_attempts: int = 3
    durable: bool = False
    epochs: bool = False  # workers look for the latest epoch of the task
    after: str = ""  # what somebody does after a power cut, before a fresh worker comes
    fsck: bool = False  # at the end it is fsck that clears up, before and after the fresh worker
    fsck_at_end: bool = False  # fsck finds nothing to say of what is left
    faulty: bool = False  # calls may fail, and callers know that
    local: bool = True  # False: the disk is shared with other machines, and locks mean nothing
    log: Any = SlotLog
    judge: type[Judge] = Impatient
    settings: tuple[tuple[str, Any], ...] = ()  # of the queue


class Worker:
    """A process with a queue of its own over the shared disk."""

    def __init__(self, scenario: Scenario, name: str, disk: SimDisk, clock: SimClock, checker: Checker) -> None:
        self.name = name
        self.clock = clock
        self.checker = checker
        self.scenario = scenario
        self.held: Claim | None = None
        self.task: Task | None = None
        self.counts = 0  # for nonces
        self.settling = False  # in the middle of what must not take an hour
        self.crowded: Callable[[], bool] = lambda: False  # True while another process is
        self.disk = disk
        self.store = DiskStore(disk, durable=scenario.durable)
        self.tree = TREE
        self.entry = ENTRY
        self.machine = Machine("pi", "boot", 1, name)
        judge = scenario.judge(self.store, clock, self.machine, lease=TTL, heartbeat_timeout=None)
        limits = Limits(TTL, scenario.max_attempts, 1 << 20)
        self.log = scenario.log(self.store, self.tree, judge, clock, self.machine, limits)
        self._queue: FilesystemQueue | None = None

    def run(self, script: str) -> None:
        """Do one word after the other; a worker that lost its task goes on with the next word."""
        for word in script.split():
            try:
                getattr(self, word)()
            except LeaseLost:
                self._let_go()
            except (QueueUnavailable, OSError):
                if not self.scenario.faulty:
                    raise
                self._let_go()  # and whatever the call has done by then stays

    def _let_go(self) -> None:
        claim, self.held, self.task = self.held, None, None
        self.checker.let_go(self.name)
        if claim is not None:
            claim.end()

    def queue(self) -> FilesystemQueue:
        """Return the queue of this process: one for all that it does."""
        if self._queue is None:
            durability = "full" if self.scenario.durable else "fast"
            given = {"durability": durability, "shards": 1, "lease": TTL, "max_attempts": self.scenario.max_attempts}
            settings = Settings(**(given | dict(self.scenario.settings)))
            queue = FilesystemQueue("q", settings, self.disk, clock=self.clock, machine=self.machine)
            if self.scenario.judge is not Judge:
                judge = self.scenario.judge(queue._store, self.clock, self.machine, lease=TTL, heartbeat_timeout=None)
                queue._judge = queue._log._judge = judge
            if self.scenario.log is not SlotLog:
                queue._log = queue._housekeeping._log = queue._used_ids._log = queue._claiming._slots = self.log
            self._queue = queue
        return self._queue

    def look(self) -> Entry:
        """Return the task as a scanner would find it."""
        if not self.scenario.epochs:
            return self.entry
        names = [task_name(found.name) for found in self.disk.scan(f"{FRONTIER}/{LANE}/0")]
        return self.tree.entry(max((n for n in names if n), default=TASK), LANE)

    def rerun(self) -> None:
        self.push("rerun")

    def push(self, if_exists: IfExists = "error") -> None:
        self.checker.begun(TASK)
        before = self.checker.entries.get(self.name, 0)
        try:
            self.queue().push({"n": 1}, id=TASK, priority=LANE, if_exists=if_exists)
        except TaskExists:
            return
        except QueueUnavailable:  # somebody stopped while he was about to retire it
            if self.scenario.settings != FORGETFUL:
                raise
            return
        if self.checker.entries.get(self.name, 0) > before:  # else a dead one was put back, which is no other task
            self.checker.pushed(TASK)

    def claim(self) -> None:
        began = self.clock.elapsed()
        with self.in_one_go():
            got = self.log.claim(self.look(), ttl=TTL)
        self.held = got if isinstance(got, Claim) else None
        if self.held is not None:
            self.checker.claimed(self.name, self.held.entry.name, self.held.generation, self.held.token, began)

    def beat(self) -> None:
        if self.held is not None:
            began = self.clock.elapsed()
            self.log.heartbeat(self.held)
            self.checker.renewed(self.name, self.held.entry.name, began)

    def ack(self) -> None:
        self._complete(stub=False)

    def ackd(self) -> None:
        """Ack as a queue does that keeps no witnesses (on_ack = "delete")."""
        self._complete(stub=True)

    def half_ack(self) -> None:
        """Begin an ack as somebody who does not care for durability, and get no further than the completion."""
        if self.held is not None:
            witness = witness_of(self.held, self.machine, self.clock, result=self.name) | {"nonce": self.held.nonce}
            hasty = DiskStore(self.disk, durable=False)
            staged = hasty.stage(dumps(witness, "witness") + b"\n")
            hasty.name(staged, self.tree.slot(self.held.entry.name, self.held.generation + 1))
            hasty.drop(staged)
            self._let_go()

    def _complete(self, *, stub: bool) -> None:
        claim = self.held
        if claim is None:
            return
        witness = witness_of(claim, self.machine, self.clock, result=None if stub else self.name)
        extra: dict[str, Any] = {"retire": True} if stub else {}
        with self.in_one_go():
            for last in (False, False, True):
                try:
                    self.log.complete(claim, witness | {"stub": True} if stub else witness, **extra)
                    break
                except OSError:  # as a worker does: the claim is still ours, so try again
                    if last or not self.scenario.faulty:
                        raise
        self.checker.acked(self.name, claim.entry.name, claim.generation, claim.nonce)
        self._let_go()

    @contextmanager
    def in_one_go(self) -> Iterator[None]:
        self.settling = True
        try:
            yield
        finally:
            self.settling = False

    def expire(self) -> None:
        """Be the housekeeper that finds a death old."""
        entry = self.look()
        with self.in_one_go():
            if self.disk.exists(entry.path) and self.log.expire(entry, lambda slot: True):
                self.checker.expired(self.name, entry.name)

    def nack(self) -> None:
        self._release(error="no", count=True)

    def give(self) -> None:
        self._release(error=None, count=False)

    def _release(self, *, error: str | None, count: bool) -> None:
        claim, self.held = self.held, None
        if claim is not None:
            self.checker.let_go(self.name)  # from here on anybody may have it
            self.log.release(claim, error=error, delay=0, count=count)

    # -- over the queue: what a worker does, step by step --------------------------------------------

    def take(self) -> None:
        """Poll as a worker does, without waiting."""
        began = self.clock.elapsed()
        with self.in_one_go():
            tasks = self.queue().poll(1)
        self.task = tasks[0] if tasks else None
        if self.task is not None:
            claim = self.queue()._claim_of(self.task)
            self.checker.claimed(self.name, claim.entry.name, claim.generation, self.task.token, began)

    def renew(self) -> None:
        if self.task is not None:
            claim, began = self.queue()._claim_of(self.task), self.clock.elapsed()
            self.queue().heartbeat(self.task)
            self.checker.renewed(self.name, claim.entry.name, began)

    def done(self) -> None:
        self._settle(Outcome("done", result=self.name))

    def fail(self) -> None:
        self._settle(Outcome("failed", error="no"))

    def release(self) -> None:
        self._settle(Outcome("released"))

    def _settle(self, outcome: Outcome) -> None:
        """Settle a task as `dfq work` does."""
        task, self.task, tries = self.task, None, 0
        if task is None:
            return
        claim = self.queue()._claim_of(task)

        def tell(task: Task, outcome: Outcome) -> None:
            if outcome.kind == "done":
                self.queue().ack(task, outcome.result)
                self.checker.acked(self.name, claim.entry.name, claim.generation, claim.nonce)
            else:
                self.checker.let_go(self.name)
                self.queue().nack(task, outcome.error or None, 0, count=outcome.kind == "failed")

        def pause(seconds: float) -> bool:
            nonlocal tries
            tries += 1
            return tries > 3 or not self.scenario.faulty

        with self.in_one_go():
            settle(task, outcome, tell=tell, pause=pause, say=lambda text: None)
        self.checker.let_go(self.name)
        claim.end()

    def retry(self) -> None:
        for task_id in self.queue().retry():
            self.checker.redriven(encode(task_id))

    def drop(self) -> None:
        with self.in_one_go(), suppress(TaskNotFound):
            self.queue().cancel(TASK)

    def purge(self) -> None:
        with self.in_one_go():
            self.queue().purge()

    def push_many(self) -> None:
        """Push so many that they are made durable together."""
        for n in range(9):
            self.checker.begun(f"{TASK}{n}")
        self.queue().push_many([Push({"n": n}, id=f"{TASK}{n}", priority=LANE) for n in range(9)])
        for n in range(9):
            self.checker.pushed(f"{TASK}{n}")

    def pause(self) -> None:
        self.checker.paused(None)
        self.queue().pause()
        self.checker.paused(True)

    def resume(self) -> None:
        self.checker.paused(None)
        self.queue().resume()
        self.checker.paused(False)

    # -- the rest ------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Do something else, which may take hours."""
        self.disk.rest()

    def age(self) -> None:
        """Let hours pass, unless somebody is in the middle of a completion: nobody is to be stopped there so long."""
        if not self.crowded():
            self.clock.advance(3 * 3600.0)

    def redrive(self) -> None:
        entry = self.look()
        if self.log.redrive(entry):
            self.checker.redriven(entry.name)

    def cancel(self) -> None:
        # As the queue does: only what was found is cancelled.
        entry = self.look()
        with self.in_one_go():
            if self.disk.exists(entry.path) and self.log.cancel(entry):
                self.checker.cancelled(self.name, entry.name)

    def half_cancel(self) -> None:
        """Be a worker that keeps nothing, and that got no further than the witness."""
        self.claim()
        claim = self.held
        if claim is not None:
            witness = witness_of(claim, self.machine, self.clock, result=None) | {"stub": True, "nonce": claim.nonce}
            staged = self.store.stage(dumps(witness, "witness") + b"\n")
            for path in (self.tree.slot(claim.entry.name, claim.generation + 1), claim.entry.witness):
                self.store.name(staged, path)
            self.store.sync(claim.entry.witness)
            self.store.drop(staged)
            self._let_go()

    def half_redrive(self) -> None:
        """Put a dead task back as somebody who dies before its letter is gone."""
        hasty = DiskStore(self.disk, durable=False)
        limits = Limits(TTL, self.scenario.max_attempts, 1 << 20)
        slots = Slots(hasty, self.tree, limits)
        with patch.object(DeadLetters, "_put_back", lambda letters, entry: None):
            DeadLetters(slots, hasty, self.tree, self.clock, self.machine, limits).redrive(self.entry)

    def half_retire(self) -> None:
        """Remove a witness, and get no further."""
        self.store.name_again(self.entry.witness, self.tree.retired(TASK))
        self.store.remove(self.entry.witness)

    def half_promote(self) -> None:
        """Make the first half of a move into the frontier, and no more."""
        for path in self._scheduled().places(TASK):
            self.store.name_again(path, self.entry.path)

    def schedule(self) -> None:
        self.checker.begun(TASK)
        self.queue().push({"n": 1}, id=TASK, priority=LANE, delay=1.0)
        self.checker.pushed(TASK)

    def promote(self) -> None:
        self.clock.advance(5)
        self._scheduled().promote()

    def withdraw(self) -> None:
        scheduled, done = self._scheduled(), False
        for path in scheduled.places(TASK):
            exposed = scheduled.expose(path)
            if exposed is not None:
                done |= self.log.cancel(exposed)
                scheduled.withdraw(path)
        if self.disk.exists(self.entry.path):
            done |= self.log.cancel(self.entry)
        if done:
            self.checker.cancelled(self.name, TASK)

    def withdraw_in_place(self) -> None:
        for path in self._scheduled().places(TASK):
            if self.log.cancel(self.tree.entry_at(path, TASK, LANE)):
                self.checker.cancelled(self.name, TASK)

    def _scheduled(self) -> Schedule:
        return Schedule(self.store, self.tree, self.clock, self.machine, 1 << 20)

    def repair(self) -> None:
        """Be the fresh worker that comes last: complete what can be completed."""
        if any("schedule" in script for script in (self.scenario.before, *self.scenario.scripts)):
            self.promote()
        dead: set[str] = set()
        for _ in range(30):
            names = {task_name(found.name) for found in self.disk.scan(f"{FRONTIER}/{LANE}/0")} - dead
            if not names:
                break
            got = self.log.claim(self.tree.entry(max(n for n in names if n), LANE), ttl=TTL)
            if isinstance(got, Claim):
                self.held = got
                self.checker.claimed(self.name, got.entry.name, got.generation, got.token, self.clock.elapsed())
                self.run("ack")
            elif isinstance(got, Blocked):
                if got.dead:
                    dead.add(max(n for n in names if n))
                self.clock.advance(2 * TTL)
        else:
            self.checker.failure(self.name, RuntimeError(f"the task is stuck in {FRONTIER}"))

    def fsck(self) -> None:
        """Repair the files. Nothing that workers do, also when they die, is an alarm."""
        for finding in self.queue().fsck(repair=True, settle=0):
            if finding.level == "must":
                self.checker.failure(
                    self.name, RuntimeError(f"fsck says {finding.level}: {finding.code} {finding.path}")
                )

    def fsck_again(self) -> None:
        """Nothing is left to repair: to be run alone, after a repair."""
        for finding in self.queue().fsck(settle=0):
            if finding.repairable:
                self.checker.failure(self.name, RuntimeError(f"fsck left {finding.code} {finding.path}"))

    def fsck_clean(self) -> None:
        """After all work is done, only what nothing guards may be left."""
        for finding in self.queue().fsck(settle=0):
            if finding.code != "orphan-slots":
                self.checker.failure(self.name, RuntimeError(f"fsck still finds {finding.code} {finding.path}"))

    def tidy(self) -> None:
        """Clear up what crashes left, and what is old enough."""
        if hasattr(self.log, "sweep_slots"):  # ADR 010 has nothing of the kind
            housekeeping = self.queue()._housekeeping
            housekeeping._last = None
            housekeeping.tidy()


_current: list[Worker] = []


def set_actor(worker: Worker) -> None:
    """Let nonces be this worker's from now on."""
    _current[:] = [worker]


def counted_nonce() -> str:
    worker = _current[-1]
    worker.counts += 1
    return f"{worker.name}.{worker.counts}"


@contextmanager
def quiet() -> Iterator[None]:
    """Say nothing of what goes wrong on purpose."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def deterministic() -> Iterator[None]:
    """Take chance out of the code under test: nonces are counted per process, no thread runs, nothing is collected."""
    with (
        quiet(),
        patch.object(Hold, "__del__", lambda hold: None),
        patch("dfq.providers.filesystem.again.RACES", 10),
        patch("dfq.providers.filesystem.again.sleep", lambda seconds: None),
        patch.object(Renewer, "add", lambda renewer, task, claim: None),
        patch("dfq.slotlog.nonce", counted_nonce),
        patch("dfq.deadletters.nonce", counted_nonce),
        patch("dfq.providers.filesystem.intake.nonce", counted_nonce),
        patch("dfq.providers.filesystem.meta.nonce", counted_nonce),
    ):
        yield
