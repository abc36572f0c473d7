"""The worker: claims tasks, has them run in processes of their own, and settles them. ADR 014 draws the processes.

with dfq.open_queue("tiles") as q:
    Worker(q, handler="tiles.scrape:run", options=WorkOptions(workers=4)).run()
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from dfq.checks import MAX_DELAY
from dfq.errors import ConfigError, QueueError, QueueUnavailable
from dfq.queue import QueueManager, Task
from dfq.work.child import named
from dfq.work.crew import Crew, CrewGone
from dfq.work.drain import Drain
from dfq.work.log import Log
from dfq.work.settle import FIRST_PAUSE, LONGEST_PAUSE, settle
from dfq.work.signals import stop_signals
from dfq.work.slot import Kind, Limits, Outcome, Slot
from dfq.work.streams import fill_standard_descriptors

if TYPE_CHECKING:
    from dfq.config import Backoff

log = logging.getLogger(__name__)

IDLE_WAIT = 60.0  # seconds that a poll waits; the queue wakes it when there is something to do
DRAIN_LOOK = 1.0  # seconds between looks for new tasks while those of a draining worker still run
SETTLED_IN = 5.0  # seconds after which a new template counts as one that works


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """How to work. The defaults are one task at a time, until told to stop."""

    workers: int = 1  # tasks at a time
    lease: float | None = None  # seconds; None is the queue's own
    timeout: float | None = None  # seconds that one task may take
    max_tasks: int | None = None  # replace a child after so many tasks
    max_rss: float | None = None  # replace a child that has grown over so many MB, after its task
    drain: bool = False  # stop when the queue is empty
    once: bool = False  # do one task if there is one, then stop
    log_format: str = "text"  # or "json"

    def __post_init__(self) -> None:
        for name in ("workers", "lease", "timeout", "max_tasks", "max_rss"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"work option {name} = {value!r}: it must be more than 0")
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"work option log_format = {self.log_format!r}: use text or json")


@dataclass(slots=True)
class WorkReport:
    """How many tasks ended in which way."""

    done: int = 0
    failed: int = 0  # attempts that failed
    dead: int = 0  # tasks that became dead letters by that
    released: int = 0  # given back without counting
    lost: int = 0  # no longer ours when they ended
    stuck: int = 0  # tasks that a drain did not wait for any longer, since they were given back again and again


class Worker:
    """Works on a queue with a command or a Python function."""

    def __init__(
        self,
        queue: QueueManager,
        *,
        command: Sequence[str] | None = None,
        handler: str | None = None,
        options: WorkOptions | None = None,
        backoff: Backoff | None = None,
        max_output: int = 256 * 1024,
    ) -> None:
        if backoff is None:
            from dfq.config import Backoff

            backoff = Backoff()
        self._queue = queue
        self._options = options or WorkOptions()
        self._backoff = backoff
        self._check(command, handler)
        self._command, self._handler, self._max_output = command, handler, max_output
        self._log = Log(self._options.log_format)
        self._stopping = threading.Event()  # no new claims
        self._aborted = threading.Event()  # and what runs is killed and given back
        self._changed = threading.Condition()  # over what follows
        self._slots: list[Slot] = []
        self._idle: list[int] = []
        self._report = WorkReport()
        self._drain = Drain(backoff.cap) if self._options.drain else None
        self._crash: BaseException | None = None

    @property
    def stopped(self) -> bool:
        """True once stop() was called: the worker did not end by itself."""
        return self._stopping.is_set()

    def run(self) -> WorkReport:
        """Work until stopped, or as the options say; return what was done.

        In the main thread SIGTERM and SIGINT call stop(), and so does SIGHUP if nothing else was said about it.
        Raises ConfigError before anything is claimed.
        """
        fill_standard_descriptors()
        with ExitStack() as stack:
            stack.enter_context(stop_signals(self.stop))
            self._crew, self._crew_since = self._new_crew(), time.monotonic()
            try:
                self._crew.start(self._stopping.is_set)
            except CrewGone as e:
                if self._stopping.is_set():
                    return self._report
                raise QueueError(f"the worker cannot start: {e}") from e
            stack.callback(lambda: self._crew.close())
            self._open_slots()
            try:
                self._claim_and_assign()
            except BaseException:
                self._abort()
                raise
            finally:
                self._close_slots()
        if self._crash is not None:
            raise self._crash
        if self._drain is not None:
            self._report.stuck = len(self._drain.stuck)
        return self._report

    def stop(self) -> None:
        """Stop: the first call lets running tasks finish, the second gives them back at once."""
        if self._stopping.is_set():
            self._log.event("stopping now: running tasks are given back")
            self._abort()
            return
        self._stopping.set()
        self._log.event("stopping: running tasks may finish; once more to give them back")
        self._queue.interrupt()
        with self._changed:
            self._changed.notify_all()

    # -- claiming ----------------------------------------------------------------------------------

    def _claim_and_assign(self) -> None:
        pause = FIRST_PAUSE
        wait = 0.0 if self._options.once or self._options.drain else IDLE_WAIT
        while (free := self._free_slots()) and self._crew_works():
            try:
                tasks = self._queue.poll(free, wait=wait, lease=self._options.lease)
            except (QueueUnavailable, OSError) as e:
                if self._options.once:
                    raise
                self._log.event(f"the queue cannot be reached, next attempt in {pause:g} s: {e}")
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if self._stopping.is_set():
                self._give_back(tasks, "worker stopped")
                return
            if not self._crew.alive:
                # It died while we waited for work. Until there is another, these are for whoever can run them.
                self._give_back(tasks, "no template process")
                continue
            for task in tasks:
                with self._changed:
                    number = self._idle.pop()
                self._inboxes[number].put(task)
            if self._options.once or (self._options.drain and not tasks and self._drained()):
                return

    def _give_back(self, tasks: list[Task], why: str) -> None:
        for task in tasks:
            self._settle(0, task, Outcome("released", brief=why, delay=0), 0.0)

    def _free_slots(self) -> int:
        """Wait for a slot; return how many are free, 0 to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._stopping.is_set())
            if self._stopping.is_set():
                return 0
            return 1 if self._options.once else len(self._idle)

    def _drained(self) -> bool:
        """True if nothing that was claimed here runs or waits for its next attempt; else wait a little for that."""
        assert self._drain is not None
        with self._changed:
            running = len(self._idle) < self._options.workers
            until_retry = self._drain.seconds_left()
            if not running and until_retry <= 0:
                return True
            if not self._stopping.is_set():
                self._changed.wait(min(DRAIN_LOOK, until_retry) if until_retry > 0 else DRAIN_LOOK)
            return False

    def _new_crew(self) -> Crew:
        return Crew(handler=self._handler, command=self._command, max_output=self._max_output)

    def _crew_works(self) -> bool:
        """Have a template, starting a new one if the last was killed; False to stop."""
        pause = FIRST_PAUSE if time.monotonic() - self._crew_since < SETTLED_IN else 0.0
        while not self._crew.alive:
            self._log.event("the template process is gone: starting another")
            if self._stopping.wait(pause):
                return False
            self._crew.close()
            crew, self._crew_since = self._new_crew(), time.monotonic()
            try:
                crew.start(self._stopping.is_set)
                self._crew = crew
            except (ConfigError, CrewGone) as e:
                pause = min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
                self._log.event(f"no tasks can be run, next attempt in {pause:g} s: {e}")
        return not self._stopping.is_set()

    # -- running -----------------------------------------------------------------------------------

    def _open_slots(self) -> None:
        options = self._options
        limits = Limits(options.timeout, options.max_tasks, options.max_rss)
        self._slots = [Slot(lambda: self._crew, limits, self._stopping, self._aborted) for _ in range(options.workers)]
        self._inboxes: list[SimpleQueue[Task | None]] = [SimpleQueue() for _ in self._slots]
        self._idle = list(reversed(range(options.workers)))
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"dfq-slot-{number + 1}", daemon=True)
            for number in range(options.workers)
        ]
        for thread in self._threads:
            thread.start()

    def _close_slots(self) -> None:
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        slot = self._slots[number]
        try:
            while (task := self._inboxes[number].get()) is not None:
                started = time.monotonic()
                outcome = self._run(slot, task)
                self._settle(number + 1, task, outcome, time.monotonic() - started)
                del task  # nobody may hold a task longer than its lease
                with self._changed:
                    self._idle.append(number)
                    self._changed.notify_all()
        except BaseException as e:  # noqa: BLE001 - kept for run(), which raises it
            self._crash = self._crash or e
            self._stopping.set()
            self._queue.interrupt()
            with self._changed:
                self._changed.notify_all()
        finally:
            slot.retire()

    def _run(self, slot: Slot, task: Task) -> Outcome:
        try:
            return slot.run(task)
        except Exception as e:  # a defect, or an answer that makes no sense: no single task may end the worker
            log.exception("task %r could not be run", task.id)
            slot.discard()
            return Outcome("failed", error=f"the worker could not run it: {named(e)}", brief="could not be run")

    def _abort(self) -> None:
        self._stopping.set()
        self._aborted.set()
        self._queue.interrupt()
        for slot in self._slots:
            slot.abort()
        with self._changed:
            self._changed.notify_all()

    # -- settling ----------------------------------------------------------------------------------

    def _settle(self, slot: int, task: Task, outcome: Outcome, seconds: float) -> None:
        outcome = settle(task, outcome, tell=self._tell, pause=self._aborted.wait, say=self._log.event)
        if outcome.kind in ("done", "lost") and self._drain is not None:
            with self._changed:
                self._drain.ended(task.id)
        self._count(outcome.kind)
        self._log.task(slot, task.id, outcome.kind, seconds, task.attempt, outcome.brief)

    def _tell(self, task: Task, outcome: Outcome) -> None:
        if outcome.kind == "done":
            self._queue.ack(task, outcome.result)
            return
        drain, counts = self._drain, outcome.kind == "failed"
        delay = min(self._backoff.delay(task.attempt) if outcome.delay is None else outcome.delay, MAX_DELAY)
        if drain is not None and not counts:
            delay = drain.delay(task.id, delay)
        self._queue.nack(task, outcome.error or None, delay, count=counts)
        dead = counts and self._is_dead(task.id)
        with self._changed:
            self._report.dead += dead
            if drain is None:
                return
            if dead:
                drain.ended(task.id)
            elif counts:
                drain.failed(task.id, delay)
            else:
                drain.gave_back(task.id, delay)

    def _is_dead(self, task_id: str) -> bool:
        try:
            return self._queue.get(task_id).state == "failed"
        except (QueueError, OSError):
            return False  # unknown: waiting for it once more does no harm

    def _count(self, kind: Kind) -> None:
        with self._changed:
            setattr(self._report, kind, getattr(self._report, kind) + 1)

    @staticmethod
    def _check(command: Sequence[str] | None, handler: str | None) -> None:
        if (command is None) == (handler is None):
            raise ConfigError("a worker needs a command or a handler, and not both")
        if handler is not None and not all(handler.partition(":")):
            raise ConfigError(f"handler {handler!r}: name it as package.module:function")
        if command is not None and (not command or shutil.which(command[0]) is None):
            raise ConfigError(
                f"command {command[0] if command else ''!r} cannot be run: there is no executable file of that name "
                "here or in PATH. Give its full path, or make it executable (chmod +x)"
            )
