"""What simulated processes do: scripts of operations over the production SlotLog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from checkers import Checker
from simdisk import Platter, SimClock, SimDisk, Step

from dfq.claim import Blocked, Claim
from dfq.config import Settings
from dfq.errors import LeaseLost, TaskExists
from dfq.lease import Slot
from dfq.ports import Machine
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.intake import Intake
from dfq.providers.filesystem.schedule import Schedule
from dfq.queue import IfExists
from dfq.records import witness_of
from dfq.slotlog import Limits, SlotLog
from dfq.staleness import Judge
from dfq.stores.disk import DiskStore, Hold
from dfq.tree import FRONTIER, Entry, Tree, task_name

TASK = "t"
LANE = 5
TTL = 60.0


class Impatient(Judge):
    """Finds every lease stale, so that each holder may be a zombie at any moment."""

    def held_until(self, slot: Slot, path: str) -> float | None:
        return None

    def due_at(self, slot: Slot) -> float | None:
        return None


@dataclass(frozen=True)
class Scenario:
    """A few processes at one task. `before` runs alone; `scripts` run against each other.

    A script is words: push, rerun, claim, beat, ack, ackd, nack, give (back, not counted), cancel, redrive, expire,
    fsck (with repair); for a delayed task schedule, promote (it is due), withdraw (cancel it wherever it is) and
    withdraw_in_place (as one must not).
    """

    name: str
    scripts: tuple[str, ...]
    before: str = "push"
    max_attempts: int = 3
    durable: bool = False
    epochs: bool = False  # workers look for the latest epoch of the task
    fsck: bool = False  # at the end it is fsck that clears up, before and after the fresh worker
    log: Any = SlotLog
    store: type[DiskStore] = DiskStore
    intake: type[Intake] = Intake
    judge: type[Judge] = Impatient


class Worker:
    """A process with a queue of its own over the shared disk."""

    def __init__(
        self, scenario: Scenario, name: str, platter: Platter, clock: SimClock, checker: Checker, step: Step, seen: Any
    ) -> None:
        self.name = name
        self.clock = clock
        self.checker = checker
        self.scenario = scenario
        self.held: Claim | None = None
        self.counts = 0  # for nonces
        self.disk = SimDisk(platter, name, step, seen)
        self.store = scenario.store(self.disk, durable=scenario.durable)
        self.tree = Tree(1)
        self.entry = self.tree.entry(TASK, LANE)
        self.machine = Machine("pi", "boot", 1, name)
        judge = scenario.judge(self.store, clock, self.machine, lease=TTL, heartbeat_timeout=None)
        limits = Limits(TTL, scenario.max_attempts, 1 << 20)
        self.log = scenario.log(self.store, self.tree, judge, clock, self.machine, limits)

    def run(self, script: str) -> None:
        """Do one word after the other; a worker that lost its task goes on with the next word."""
        for word in script.split():
            try:
                getattr(self, word)()
            except LeaseLost:
                self.held = None

    def queue(self) -> FilesystemQueue:
        durability = "full" if self.scenario.durable else "fast"
        settings = Settings(durability=durability, shards=1, lease=TTL, max_attempts=self.scenario.max_attempts)
        queue = FilesystemQueue("q", settings, self.disk, clock=self.clock, machine=self.machine)
        queue._store.__class__, queue._intake.__class__ = self.scenario.store, self.scenario.intake
        queue._log = queue._housekeeping._log = queue._used_ids._log = self.log
        return queue

    def look(self) -> Entry:
        """Return the task as a scanner would find it."""
        if not self.scenario.epochs:
            return self.entry
        names = [task_name(found.name) for found in self.disk.scan(f"{FRONTIER}/{LANE}/0")]
        return self.tree.entry(max((n for n in names if n), default=TASK), LANE)

    def rerun(self) -> None:
        self.push("rerun")

    def push(self, if_exists: IfExists = "error") -> None:
        try:
            self.queue().push({"n": 1}, id=TASK, priority=LANE, if_exists=if_exists)
        except TaskExists:
            return
        self.checker.pushed(TASK)

    def claim(self) -> None:
        got = self.log.claim(self.look(), ttl=TTL)
        self.held = got if isinstance(got, Claim) else None
        if self.held is not None:
            self.checker.claimed(self.name, self.held.entry.name, self.held.generation)

    def beat(self) -> None:
        if self.held is not None:
            self.log.heartbeat(self.held)

    def ack(self) -> None:
        claim, self.held = self.held, None
        if claim is not None:
            self.log.complete(claim, witness_of(claim, self.machine, self.clock, result=self.name))
            self.checker.acked(self.name, claim.entry.name, claim.generation, claim.nonce)

    def ackd(self) -> None:
        """Ack as a queue does that keeps no witnesses (on_ack = "delete")."""
        claim, self.held = self.held, None
        if claim is not None:
            witness = witness_of(claim, self.machine, self.clock, result=None) | {"stub": True}
            self.log.complete(claim, witness, retire=True)
            self.checker.acked(self.name, claim.entry.name, claim.generation, claim.nonce)

    def expire(self) -> None:
        """Be the housekeeper that finds a death old."""
        entry = self.look()
        if self.disk.exists(entry.path) and self.log.expire(entry, lambda slot: True):
            self.checker.expired(self.name, entry.name)

    def nack(self) -> None:
        claim, self.held = self.held, None
        if claim is not None:
            self.log.release(claim, error="no", delay=0, count=True)

    def give(self) -> None:
        claim, self.held = self.held, None
        if claim is not None:
            self.log.release(claim, error=None, delay=0, count=False)

    def redrive(self) -> None:
        entry = self.look()
        if self.log.redrive(entry):
            self.checker.redriven(entry.name)

    def cancel(self) -> None:
        # As the queue does: only what was found is cancelled.
        entry = self.look()
        if self.disk.exists(entry.path) and self.log.cancel(entry):
            self.checker.cancelled(self.name, entry.name)

    def schedule(self) -> None:
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
        if "schedule" in self.scenario.before:
            self.promote()
        dead: set[str] = set()
        for _ in range(30):
            names = {task_name(found.name) for found in self.disk.scan(f"{FRONTIER}/{LANE}/0")} - dead
            if not names:
                break
            got = self.log.claim(self.tree.entry(max(n for n in names if n), LANE), ttl=TTL)
            if isinstance(got, Claim):
                self.held = got
                self.checker.claimed(self.name, got.entry.name, got.generation)
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
        """Clear up what crashes left."""
        if hasattr(self.log, "sweep_slots"):  # ADR 010 has nothing of the kind
            self.queue()._housekeeping.tidy()


_current: list[Worker] = []


def set_actor(worker: Worker) -> None:
    """Let nonces be this worker's from now on."""
    _current[:] = [worker]


def counted_nonce() -> str:
    worker = _current[-1]
    worker.counts += 1
    return f"{worker.name}.{worker.counts}"


@contextmanager
def deterministic() -> Iterator[None]:
    """Take chance out of the code under test: nonces are counted per process, and no collector closes files."""
    with (
        patch.object(Hold, "__del__", lambda hold: None),
        patch("dfq.slotlog.nonce", counted_nonce),
        patch("dfq.providers.filesystem.intake.nonce", counted_nonce),
        patch("dfq.providers.filesystem.meta.nonce", counted_nonce),
    ):
        yield
