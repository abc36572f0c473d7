"""The queue on a disk: a QueueManager over the slot log (ADR 010 to 013)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dfq import checks
from dfq.claim import Blocked, Claim, Gone
from dfq.codec import decode_payload, dumps, encode_result, iso, loads
from dfq.config import Settings
from dfq.errors import InvalidTask, LeaseLost, QueueUnavailable, TaskExists, TaskNotFound
from dfq.names import check_queue_name, encode
from dfq.ports import Clock, Disk, Machine, OsDisk, SystemClock
from dfq.providers.filesystem.frontier import Frontier
from dfq.providers.filesystem.housekeeping import Housekeeping, Retention
from dfq.providers.filesystem.idle import Idle
from dfq.providers.filesystem.intake import Intake, Item
from dfq.providers.filesystem.meta import refuse_unsafe, shards_of
from dfq.providers.filesystem.schedule import Schedule
from dfq.providers.filesystem.steady import Steadiness
from dfq.providers.filesystem.view import View
from dfq.queue import DEFAULT_PRIORITY, Counts, IfExists, Push, QueueManager, State, Task, TaskInfo, as_push
from dfq.records import witness_of
from dfq.renewal import Renewer
from dfq.slotlog import Limits, SlotLog
from dfq.staleness import Judge
from dfq.stores.disk import DiskStore
from dfq.tree import PAUSED, SCHEDULED, Entry, Tree, epoch_of, id_of, in_epoch, parent, task_name
from dfq.trouble import trouble

if TYPE_CHECKING:
    from dfq.providers.filesystem.faults import Finding
    from dfq.providers.filesystem.fsck import Progress

log = logging.getLogger("dfq")

MANY = 1000  # tasks that push_many makes durable together
SPARE_DESCRIPTORS = 64  # that are left to whoever uses the queue
EPOCH_RACES = 20  # how often a push looks again because somebody else pushed the same id's next epoch


_LIVE: weakref.WeakSet[FilesystemQueue] = weakref.WeakSet()


class FilesystemQueue(QueueManager):
    """A queue that is a folder of small files. Any number of processes may open it at the same time."""

    queue_type = "filesystem"

    @classmethod
    def open(cls, name: str, settings: Settings, *, create: bool = True) -> FilesystemQueue:
        """Open (and make, unless create is False) the queue <root>/<name>."""
        root = os.path.realpath(os.path.expanduser(str(settings.root)))
        folder = os.path.join(root, check_queue_name(name))
        with trouble(f"open queue {name!r}", folder):
            if create:
                os.makedirs(root, 0o775, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o775)
                    if settings.durability == "full":
                        OsDisk(root).fsync_dir(".")
            for place in (root, folder):
                refuse_unsafe(place)
            return cls(name, settings, OsDisk(folder), create=create, where=folder)

    def __init__(
        self,
        name: str,
        settings: Settings,
        disk: Disk,
        *,
        clock: Clock | None = None,
        machine: Machine | None = None,
        create: bool = True,
        where: str = "",
    ) -> None:
        super().__init__(name)
        self.settings = settings
        self.where = where
        self._clock: Clock = clock or SystemClock()
        self._given_machine = machine
        self._disk = disk
        self._closed = False
        self._warned: set[str] = set()
        store = DiskStore(disk, durable=settings.durability == "full")
        self._build(shards_of(store, self._clock, create=create, shards=settings.shards, where=where))
        _LIVE.add(self)

    def _build(self, shards: int) -> None:
        """Put the parts together: when the queue is opened, and again in a process that was forked since."""
        settings, disk, where = self.settings, self._disk, self.where
        self._machine = self._given_machine or Machine.this()
        self._store = store = DiskStore(disk, durable=settings.durability == "full")
        self._tree = tree = Tree(shards)
        ttl, timeout = settings.lease, settings.heartbeat_timeout
        self._ttl = ttl if timeout is None else min(ttl, timeout)
        # A producer may have a larger max_payload than we; JSON may write a character as six.
        self._max_file = 6 * max(settings.max_payload, 1024 * 1024) + 64 * 1024
        self._judge = Judge(store, self._clock, self._machine, lease=self._ttl, heartbeat_timeout=timeout)
        limits = Limits(self._ttl, settings.max_attempts, self._max_file)
        self._log = SlotLog(store, tree, self._judge, self._clock, self._machine, limits)
        self._scan_lock = threading.RLock()  # the frontier and the schedule
        self._frontier = Frontier(disk, tree, self._clock)
        self._schedule = Schedule(store, tree, self._clock, self._machine, self._max_file)
        self._view = View(
            store,
            tree,
            self._log,
            self._judge,
            self._schedule,
            self._clock,
            self._machine,
            self._max_file,
        )
        self._intake = Intake(
            store,
            tree,
            self._view,
            self._schedule,
            self._clock,
            self._machine,
            max_payload=settings.max_payload,
            max_file=self._max_file,
        )
        retention = Retention.of(self._ttl, settings.retain_completed, settings.retain_failed)
        steadiness = Steadiness(store, self._clock, self._machine)
        self._housekeeping = Housekeeping(store, tree, self._log, self._view, self._clock, steadiness, retention)
        self._idle = Idle(disk, tree, self._frontier, self._schedule, self._clock, self._scan_lock, where)
        self._renewer = Renewer(
            self._log.heartbeat,
            self._clock,
            automatic=settings.auto_heartbeat,
            max_run=settings.max_run,
            on_end=self._came_back,
        )
        self._returned: list[str] = []  # names to offer again, from other threads
        self._disk_was_full = False

    def _forked(self) -> None:
        """Become the queue of a child process: with its own locks, thread and events, and nothing held."""
        self._renewer.forked()
        self._idle.forked()
        interrupted, self._interrupted = self._interrupted.is_set(), threading.Event()
        if interrupted:
            self._interrupted.set()
        self._build(self._tree.shards)

    # -- push --------------------------------------------------------------------------------------

    def push(
        self,
        payload: Any,
        *,
        id: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        delay: float = 0,
        if_exists: IfExists = "error",
    ) -> str:
        checks.check_if_exists(if_exists)
        item = self._intake.prepare(Push(payload, id, priority, delay))
        return self._write([item], if_exists)[0]

    def push_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int = DEFAULT_PRIORITY,
        delay: float = 0,
        if_exists: IfExists = "error",
    ) -> list[str]:
        checks.check_if_exists(if_exists)
        ids: list[str] = []
        batch: list[Item] = []
        many = min(MANY, max(1, self._free_descriptors() // 2))
        for given in payloads:
            batch.append(self._intake.prepare(as_push(given, priority, delay)))
            if len(batch) >= many:
                ids += self._write(batch, if_exists)
                batch = []
        return ids + self._write(batch, if_exists)

    def _write(self, batch: list[Item], if_exists: IfExists) -> list[str]:
        self._check_open()
        with self._trouble("push"):
            taken = self._intake.write(batch)
        with self._scan_lock:
            for lane in {item.entry.lane for item in batch}:
                self._frontier.arrived(lane)
        self._idle.wake()
        for item in taken:
            self._push_again(item, if_exists)
        return [item.id for item in batch]

    def _push_again(self, item: Item, if_exists: IfExists) -> None:
        """Push an id that was used before: as its next epoch if that is asked for, or if it was cancelled (ADR 017)."""
        for _ in range(EPOCH_RACES):
            name = self._next_epoch(item, if_exists)
            if name is None:
                return
            with self._trouble("push"):
                again = self._intake.prepare(item.push, epoch_of(name))
                if not self._intake.write([again]) and self._anchored(again):
                    return
        raise QueueUnavailable(f"task {item.id!r} is being pushed by too many at once: try again")

    def _next_epoch(self, item: Item, if_exists: IfExists) -> str | None:
        """Return the name to push an id under; None if nothing is to be pushed. Raises TaskExists."""
        try:
            info = self.get(item.id)
        except TaskNotFound:  # retired meanwhile
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
            pushed = loads(item.data, item.path)
            if decode_payload(pushed["payload"], pushed["encoding"], item.path) == info.payload:
                self.retry(item.id)
                return None
            self.cancel(item.id)
            return following
        hint = "use if_exists='skip', or 'rerun' to run it again once it is over"
        raise TaskExists(f"task {item.id!r} is already {info.state}: {hint}", task_id=item.id)

    def _anchored(self, item: Item) -> bool:
        """Tell whether a later epoch that was just pushed may stay; if not, it was taken back.

        While an id has later epochs, the witness of its first tells every push so. If it was retired in this very
        moment, the task is taken out again in a way that holds, unless a worker has completed it already.
        """
        anchor = self._tree.completed(in_epoch(item.entry.name, 0))
        if item.entry.witness == anchor or self._store.exists(anchor):
            return True
        return not self._log.cancel(self._tree.entry_at(item.path, item.entry.name, item.entry.lane))

    # -- poll --------------------------------------------------------------------------------------

    def poll(self, batch_size: int = 1, *, wait: float = 0, lease: float | None = None) -> list[Task]:
        return self._poll(batch_size, wait, lease, "lock")

    def poll_detached(self, batch_size: int = 1, *, wait: float = 0, lease: float | None = None) -> list[Task]:
        """Claim tasks whose leases outlive this process and go by time alone; go on with Task.receipt."""
        return self._poll(batch_size, wait, lease, "ttl")

    def _poll(self, batch_size: int, wait: float, lease: float | None, liveness: str) -> list[Task]:
        batch_size = checks.check_batch(batch_size)
        ends = self._clock.elapsed() + checks.check_wait(wait)
        ttl = self._ttl if lease is None else checks.check_lease(lease)
        self._check_open()
        with self._trouble("poll"):
            while True:
                tasks = self._take(batch_size, ttl, liveness)
                left = ends - self._clock.elapsed()
                with self._scan_lock:
                    self._housekeeping.tidy(busy=bool(tasks))
                if tasks or left <= 0 or self._interrupted.is_set() or self._closed:
                    return tasks
                self._idle.sleep(left)

    def _take(self, batch_size: int, ttl: float, liveness: str) -> list[Task]:
        tasks: list[Task] = []
        if liveness == "lock":  # each held lease is an open file
            free = self._free_descriptors()
            if free < 1:
                raise OSError(errno.EMFILE, "too many tasks are held: settle some, or raise the limit (ulimit -n)")
            batch_size = min(batch_size, free)
        with self._scan_lock:
            if self.paused:
                return []
            self._check_space()
            self._offer_again()
            for entry in self._schedule.promote():
                self._frontier.hint(entry)
            for entry in self._frontier.candidates():
                try:
                    got = self._log.claim(entry, ttl=ttl, liveness=liveness)
                except OSError as e:
                    self._disk_was_full = e.errno in (errno.ENOSPC, errno.EDQUOT)
                    self._frontier.block(entry, self._clock.elapsed() + 1.0)
                    if not tasks:
                        raise
                    break
                if isinstance(got, Claim):
                    self._frontier.block(entry, self._clock.elapsed() + ttl)  # nobody may be renewing it
                    tasks.append(self._hand_out(got, renew=liveness == "lock"))
                    if len(tasks) == batch_size:
                        break
                elif isinstance(got, Gone):
                    self._frontier.forget(entry)
                elif isinstance(got, Blocked):
                    self._block(entry, got)
                else:
                    self._frontier.block(entry, self._clock.elapsed() + ttl, held=True)
        self._warn_of_strangers()
        return tasks

    def _block(self, entry: Entry, blocked: Blocked) -> None:
        until = blocked.until
        if blocked.held and until is not None:
            soon = self._idle.look_again_in(entry.name)
            until = until if soon is None else min(until, self._clock.elapsed() + soon)
        self._frontier.block(entry, until, dead=blocked.dead, held=blocked.held)

    def _hand_out(self, claim: Claim, *, renew: bool) -> Task:
        task = self._task(claim)
        if not renew:
            claim.hold.close()
            return task
        try:
            self._renewer.add(task, claim)
        except RuntimeError as e:  # no more threads: a lease that nobody renews is no use
            self._log.release(claim, error=None, delay=0, count=False)
            raise OSError(errno.EAGAIN, f"no thread to renew leases: {e}", self.where) from e
        return task

    def _task(self, claim: Claim) -> Task:
        record = claim.task
        claim.home = self.where
        return Task(
            id=record["id"],
            payload=decode_payload(record["payload"], record["encoding"], claim.entry.path),
            attempt=claim.attempt,
            token=claim.token,
            created_at=str(record.get("created_at", "")),
            priority=claim.entry.lane,
            held=claim,
        )

    def _came_back(self, claim: Claim) -> None:
        self._returned.append(claim.entry.name)
        self._idle.wake()

    def _offer_again(self) -> None:
        returned, self._returned = self._returned, []
        for name in returned:
            self._frontier.unblock(name)

    def _check_space(self) -> None:
        if self._disk_was_full and self._disk.free_bytes() < 64 * 1024:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.where)
        self._disk_was_full = False

    def _warn_of_strangers(self) -> None:
        for path in self._frontier.strangers() - self._warned:
            self._warned.add(path)
            log.warning("%s/%s is no task and is left alone", self.where, path)

    # -- settle ------------------------------------------------------------------------------------

    def ack(self, task: Task, result: Any = None) -> None:
        value, encoding = encode_result(result, self.settings.max_payload)
        stub = self.settings.on_ack == "delete"
        with self._trouble("ack"), (claim := self._claim_of(task)).mutex:
            witness = witness_of(claim, self._machine, self._clock, "done", None if stub else value, encoding)
            self._log.complete(claim, witness | {"stub": True} if stub else witness, retire=stub)
        self._renewer.remove(claim)
        with self._scan_lock:
            self._frontier.forget(claim.entry)

    def nack(self, task: Task, error: str | None = None, delay: float = 0, *, count: bool = True) -> None:
        error, delay = checks.check_error(error), checks.check_delay(delay)
        with self._trouble("nack"), (claim := self._claim_of(task)).mutex:
            self._log.release(claim, error=error, delay=delay, count=count)
        self._renewer.remove(claim)
        self._came_back(claim)

    def heartbeat(self, task: Task, extend: float | None = None) -> None:
        ttl = None if extend is None else checks.check_lease(extend, "extend")
        with self._trouble("heartbeat"), (claim := self._claim_of(task)).mutex:
            self._log.heartbeat(claim, ttl)

    def resume_lease(self, receipt: str) -> Task:
        with self._trouble("resume a lease"):
            return self._task(self._log.take_up(receipt))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._interrupted.set()
        claims = self._renewer.claims()
        self._renewer.stop()
        for claim in claims:
            with claim.mutex:
                try:
                    if not claim.ended:
                        self._log.release(claim, error=None, delay=0, count=False)
                except (LeaseLost, OSError) as e:
                    log.info("task %r: not given back at close: %s", claim.entry.name, e)
                    claim.end()
        self._idle.close()

    # -- look and act ------------------------------------------------------------------------------

    def counts(self) -> Counts:
        with self._trouble("count"):
            return self._view.counts()

    def tasks(self, state: State | None = None, *, limit: int | None = None) -> Iterator[TaskInfo]:
        checks.check_state(state)
        checks.check_limit(limit)
        with self._trouble("list"):
            for n, info in enumerate(self._view.tasks(state)):
                if limit is not None and n >= limit:
                    return
                yield info

    def get(self, task_id: str) -> TaskInfo:
        with self._trouble("look"):
            return self._view.get(task_id)

    def retry(self, task_ids: str | Iterable[str] | None = None) -> list[str]:
        with self._trouble("retry"):
            if task_ids is None:
                entries = [self._view.find(name) for name in self._view.failed()]
                done = [e for e in entries if e is not None and self._log.redrive(e)]
                return [self._again(e) for e in done]
            ids = checks.check_ids(task_ids)
            for task_id in ids:
                entry = self._view.find(self._view.current(encode(task_id)))
                if entry is None or not self._log.redrive(entry):
                    raise TaskNotFound(f"task {task_id!r} is not among the failed ones")
                self._again(entry)
            return ids

    def _again(self, entry: Entry) -> str:
        self._returned.append(entry.name)
        self._idle.wake()
        return id_of(entry.name) or self._view.id_of(entry)

    def cancel(self, task_ids: str | Iterable[str]) -> list[str]:
        ids = checks.check_ids(task_ids)
        with self._trouble("cancel"):
            for task_id in ids:
                name = self._view.current(encode(task_id))
                if not sum(self._cancel(entry) for entry in self._entries(name)):
                    raise TaskNotFound(f"task {task_id!r} is not waiting, running or failed")
        return ids

    def _cancel(self, entry: Entry) -> bool:
        done = self._log.cancel(entry)
        if entry.path.startswith(f"{SCHEDULED}/"):
            self._disk.rmdir(parent(entry.path))  # if it was the last one that is due then
        return done

    def _entries(self, name: str) -> list[Entry]:
        found = [self._view.find(name)]
        path = self._schedule.find(name)
        if path is not None:
            found.append(self._tree.entry_at(path, name, DEFAULT_PRIORITY))
        return [entry for entry in found if entry is not None]

    def purge(self) -> int:
        with self._trouble("purge"):
            gone = sum(self._log.cancel(entry) for entry in list(self._view.frontier()))
            for path in self._schedule.paths():
                name = task_name(path.rpartition("/")[2])
                if name is not None:
                    gone += self._cancel(self._tree.entry_at(path, name, DEFAULT_PRIORITY))
            return gone

    def fsck(
        self, *, repair: bool = False, settle: float | None = None, progress: Progress | None = None
    ) -> Iterator[Finding]:
        """Check every file against the format (ADR 012) and iterate over what is wrong.

        With repair, what can be put right without a person is; workers may run meanwhile. What looks wrong is looked
        at again after `settle` seconds (one). `progress` is called with how many of how many parts were looked at.
        """
        from dfq.providers.filesystem.fsck import SETTLE, Fsck

        check = Fsck(
            self._store,
            self._tree,
            self._log,
            Schedule(self._store, self._tree, self._clock, self._machine, self._max_file),
            Steadiness(self._store, self._clock, self._machine),
            self._clock,
            max_file=self._max_file,
            settle=SETTLE if settle is None else settle,
            wait=self._interrupted.wait,
        )
        with self._trouble("check"):
            yield from check.findings(repair=repair, progress=progress)

    def pause(self) -> None:
        with self._trouble("pause"):
            staged = self._store.stage(dumps({"paused_at": iso(self._clock.wall())}) + b"\n")
            try:
                with contextlib.suppress(FileExistsError):
                    self._disk.link(staged, PAUSED)
                self._store.sync(PAUSED)
            finally:
                self._store.drop(staged)

    def resume(self) -> None:
        with self._trouble("resume"):
            self._disk.unlink(PAUSED)
            self._store.sync(PAUSED)
        self._idle.wake()

    @property
    def paused(self) -> bool:
        with self._trouble("look"):
            return self._disk.exists(PAUSED)

    # -- inside ------------------------------------------------------------------------------------

    def _free_descriptors(self) -> int:
        """Return about how many files this process may still open."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MANY * 100 if limit == resource.RLIM_INFINITY else limit
        return limit - SPARE_DESCRIPTORS - len(self._renewer.claims())

    def _claim_of(self, task: Task) -> Claim:
        claim = task._held
        if not isinstance(claim, Claim) or claim.home != self.where:
            raise InvalidTask(f"task {task.id!r} comes from another queue than {self.where}")
        if claim.hold.fd is None and not claim.ended:  # a detached claim, settled in the process that made it
            taken = self._log.take_up(claim.receipt)
            claim.hold = taken.hold
        return claim

    def _wake(self) -> None:
        self._idle.wake()

    def _check_open(self) -> None:
        if self._closed:
            raise QueueUnavailable(f"queue {self.name!r} is closed: open it again")

    def _trouble(self, what: str) -> contextlib.AbstractContextManager[None]:
        return trouble(what, self.where)


def _forked() -> None:
    for queue in list(_LIVE):
        queue._forked()


os.register_at_fork(after_in_child=_forked)
