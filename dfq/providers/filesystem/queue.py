"""The queue on a disk: a QueueManager over the slot log (ADR 010 to 013)."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dfq import checks
from dfq.claim import Claim
from dfq.codec import decode_payload, dumps, encode_result, iso
from dfq.config import Settings
from dfq.errors import InvalidTask, LeaseLost, QueueUnavailable, TaskNotFound, Unsupported
from dfq.names import check_queue_name, encode
from dfq.ports import Clock, Disk, Machine, OsDisk, SystemClock
from dfq.providers.filesystem.again import Again
from dfq.providers.filesystem.claiming import Claiming
from dfq.providers.filesystem.frontier import Frontier
from dfq.providers.filesystem.housekeeping import Housekeeping, Retention
from dfq.providers.filesystem.idle import Idle
from dfq.providers.filesystem.index import IndexFrontier, IndexView
from dfq.providers.filesystem.intake import Intake, Item
from dfq.providers.filesystem.meta import refuse_unsafe, refuse_unsafe_within, shards_of
from dfq.providers.filesystem.schedule import Schedule
from dfq.providers.filesystem.steady import Steadiness
from dfq.providers.filesystem.tiles import IndexTree, Tiles, index_folders
from dfq.providers.filesystem.view import View
from dfq.queue import DEFAULT_PRIORITY, Counts, IfExists, Push, QueueManager, State, Task, TaskInfo, TaskState, as_push
from dfq.records import witness_of
from dfq.renewal import Renewer
from dfq.slotlog import SlotLog
from dfq.slots import Limits
from dfq.staleness import Judge
from dfq.stalled import Pulse
from dfq.stores.disk import DiskStore
from dfq.tree import PAUSED, Entry, Tree, id_of, plain
from dfq.trouble import trouble

if TYPE_CHECKING:
    from dfq.providers.filesystem.faults import Finding
    from dfq.providers.filesystem.fsck import Progress

log = logging.getLogger("dfq")

MANY = 1000  # tasks that push_many makes durable together
SPARE_DESCRIPTORS = 64  # that are left to whoever uses the queue


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
            if not os.path.lexists(root):
                if not create:
                    raise QueueUnavailable(
                        f"there is no queue {name!r}: its root {root} does not exist (root or DFQ_ROOT)"
                    )
                os.makedirs(root, 0o775, exist_ok=True)
            refuse_unsafe(root)
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o775)
                    if settings.durability == "full":
                        OsDisk(root).fsync_dir(".")
            elif not os.path.lexists(folder):
                raise QueueUnavailable(f"there is no queue {name!r} in {root}: make it with 'dfq init'")
            refuse_unsafe(folder)
            refuse_unsafe_within(folder)
            disk = OsDisk(folder, elsewhere=index_folders(settings, folder))
            return cls(name, settings, disk, create=create, where=folder)

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
        store = DiskStore(disk, durable=settings.durability == "full")
        mode = settings.frontier_mode
        self._build(shards_of(store, self._clock, create=create, shards=settings.shards, mode=mode, where=where))
        _LIVE.add(self)

    def _build(self, shards: int) -> None:
        """Put the parts together: when the queue is opened, and again in a process that was forked since."""
        settings, disk, where = self.settings, self._disk, self.where
        self._machine = self._given_machine or Machine.this()
        self._store = store = DiskStore(disk, durable=settings.durability == "full")
        self.shards = shards
        index = settings.frontier_mode == "index"
        self._tree = tree = IndexTree(shards) if index else Tree(shards)
        ttl, timeout = settings.lease, settings.heartbeat_timeout
        self._ttl = ttl if timeout is None else min(ttl, timeout)
        # A producer may have a larger max_payload than we; JSON may write a character as six.
        self._max_file = 6 * max(settings.max_payload, 1024 * 1024) + 64 * 1024
        self._judge = Judge(store, self._clock, self._machine, lease=self._ttl, heartbeat_timeout=timeout)
        limits = Limits(self._ttl, settings.max_attempts, self._max_file)
        self._scan_lock = threading.RLock()  # the frontier and the schedule
        self._schedule = Schedule(store, tree, self._clock, self._machine, self._max_file, where)
        pulse = Pulse(
            store,
            self._judge,
            self._clock,
            self._machine,
            lease=self._ttl,
            heartbeat_timeout=timeout,
            max_attempts=settings.max_attempts,
        )
        around = (self._judge, pulse, self._schedule, self._clock, self._machine, self._max_file)
        self._frontier: Frontier
        self._view: View
        # Of an index nothing expires; what lies in its own completed/ are the witnesses that a newer one replaced.
        keep = (0.0, None) if index else (settings.retain_completed, settings.retain_failed)
        retention = Retention.of(self._ttl, *keep)
        steadiness = Steadiness(store, self._clock, self._machine)
        leftovers: Callable[[], list[str]] = list
        if isinstance(tree, IndexTree):
            made = partial(
                Tiles, disk, store, tree, self._clock, refresh_after=settings.refresh_after, guard=retention.guard
            )
            # Whoever only looks writes nothing, also not since when the clock is steady.
            looking = Steadiness(store, self._clock, self._machine, notes=False)
            tiles, shown = made(steadiness), made(looking)
            leftovers = tiles.leftovers
            limits = replace(limits, max_task=settings.max_payload, owned=False)
            self._log = SlotLog(store, tree, self._judge, self._clock, self._machine, limits, tiles.show)
            self._frontier = IndexFrontier(disk, tree, self._clock, where, tiles)
            self._view = IndexView(store, tree, self._log, *around, tiles=shown, max_payload=settings.max_payload)
        else:
            self._log = SlotLog(store, tree, self._judge, self._clock, self._machine, limits)
            self._frontier = Frontier(disk, tree, self._clock, where)
            self._view = View(store, tree, self._log, *around)
        self._intake = Intake(
            store,
            tree,
            self._view,
            self._clock,
            self._machine,
            max_payload=settings.max_payload,
            max_file=self._max_file,
        )
        self._used_ids = Again(self._intake, self._view, self._log, store, tree, self.retry, where)
        self._housekeeping = Housekeeping(
            store, tree, self._log, self._view, self._clock, steadiness, retention, leftovers
        )
        self._idle = Idle(
            disk, tree, self._frontier, self._schedule, self._clock, self._scan_lock, where, self._located
        )
        self._renewer = Renewer(
            self._log.heartbeat,
            self._clock,
            automatic=settings.auto_heartbeat,
            max_run=settings.max_run,
            on_end=self._came_back,
        )
        self._claiming = Claiming(
            self._log, self._frontier, self._schedule, self._idle, disk, self._clock, self._located, owned=not index
        )

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
        on_skip: Callable[[str], None] | None = None,
    ) -> str:
        checks.check_if_exists(if_exists)
        self._check_owned("push", f"put a file into {self.settings.frontier}")
        item = self._intake.prepare(Push(payload, id, priority, delay))
        return self._write([item], if_exists, on_skip)[0]

    def push_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int = DEFAULT_PRIORITY,
        delay: float = 0,
        if_exists: IfExists = "error",
        on_skip: Callable[[str], None] | None = None,
    ) -> list[str]:
        checks.check_if_exists(if_exists)
        self._check_owned("push_many", f"put files into {self.settings.frontier}")
        ids: list[str] = []
        batch: list[Item] = []
        many = min(MANY, max(1, self._free_descriptors() // 2))
        for given in checks.check_many(payloads, "push_many", "push"):
            batch.append(self._intake.prepare(as_push(given, priority, delay)))
            if len(batch) >= many:
                ids += self._write(batch, if_exists, on_skip)
                batch = []
        return ids + self._write(batch, if_exists, on_skip)

    def _write(self, batch: list[Item], if_exists: IfExists, on_skip: Callable[[str], None] | None) -> list[str]:
        with self._trouble("push"):
            taken = self._intake.write(batch)
            try:
                for item in taken:
                    if not self._used_ids.push(item, if_exists) and on_skip is not None:
                        on_skip(item.id)
            finally:  # some may be there whatever became of the others
                with self._scan_lock:
                    for lane in {item.entry.lane for item in batch}:
                        self._frontier.arrived(lane)
                self._idle.wake()
        return [item.id for item in batch]

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
        with self._trouble("poll"):
            while True:
                news = self._idle.news
                tasks = self._take(batch_size, ttl, liveness)
                left = ends - self._clock.elapsed()
                self._tidy(busy=bool(tasks))
                if tasks or left <= 0 or self._interrupted.is_set() or self._closed:
                    return tasks
                self._idle.sleep(left, news, paused=self.paused)

    def _take(self, batch_size: int, ttl: float, liveness: str) -> list[Task]:
        if liveness == "lock":  # each held lease is an open file
            free = self._free_descriptors()
            if free < 1:
                raise OSError(errno.EMFILE, "too many tasks are held: settle some, or raise the limit (ulimit -n)")
            batch_size = min(batch_size, free)
        with self._scan_lock:
            if self._disk.exists(PAUSED):
                return []
            return self._claiming.take(batch_size, ttl, liveness, self._hand_out)

    def _hand_out(self, claim: Claim, liveness: str) -> Task:
        task = self._task(claim)
        if liveness != "lock":
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

    def _tidy(self, *, busy: bool) -> None:
        try:
            with self._scan_lock:
                self._housekeeping.tidy(busy=busy)
        except OSError as e:  # nothing depends on it, least of all the tasks that were just claimed
            log.warning("%s: clearing up: %s", self.where, e)

    def _came_back(self, claim: Claim) -> None:
        self._claiming.returned.append(claim.entry.name)
        self._idle.wake()

    # -- settle ------------------------------------------------------------------------------------

    def ack(self, task: Task, result: Any = None) -> None:
        checks.check_task(task, "ack")
        value, encoding = encode_result(result, self.settings.max_payload)
        stub = self.settings.on_ack == "delete"
        with self._settling("ack", task) as claim:
            witness = witness_of(claim, self._machine, self._clock, "done", None if stub else value, encoding)
            self._log.complete(claim, witness | {"stub": True} if stub else witness, retire=stub)
        self._renewer.remove(claim)
        with self._scan_lock:
            self._frontier.forget(claim.entry)

    def nack(self, task: Task, error: str | None = None, delay: float = 0, *, count: bool = True) -> None:
        checks.check_task(task, "nack")
        error, delay = checks.check_error(error), checks.check_delay(delay)
        with self._settling("nack", task) as claim:
            self._log.release(claim, error=error, delay=delay, count=count)
        self._renewer.remove(claim)
        self._came_back(claim)

    def heartbeat(self, task: Task, extend: float | None = None) -> None:
        checks.check_task(task, "heartbeat")
        ttl = None if extend is None else checks.check_lease(extend, "extend")
        with self._settling("heartbeat", task) as claim:
            self._log.heartbeat(claim, ttl)

    @contextlib.contextmanager
    def _settling(self, what: str, task: Task) -> Iterator[Claim]:
        with trouble(what, self.where), (claim := self._claim_of(task)).mutex:
            try:
                yield claim
            except LeaseLost:
                self._renewer.remove(claim)
                self._came_back(claim)  # whose it is now we do not know: it may be anybody's, also ours again
                raise

    def resume_lease(self, receipt: str) -> Task:
        with self._trouble("resume a lease"):
            try:
                return self._task(self._log.take_up(receipt))
            except LeaseLost:
                name = receipt.split(".", 3)[3]
                if self._store.exists(self._tree.completed(name)) or self._view.is_open(name):
                    raise
                task_id = id_of(name) or plain(name)
            raise LeaseLost(f"there is no task {task_id!r} in queue {self.name!r} at {self.where}")

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
        self._check_open()
        return self._list(state, limit)

    def _list(self, state: State | None, limit: int | None) -> Iterator[TaskInfo]:
        with trouble("list", self.where):
            for n, info in enumerate(self._view.tasks(state)):
                if limit is not None and n >= limit:
                    return
                yield self._placed(info)

    def states(self, prefix: str = "") -> Iterator[TaskState]:
        with self._trouble("list"):
            yield from self._view.states(prefix)

    def get(self, task_id: str) -> TaskInfo:
        with self._trouble("look"):
            return self._placed(self._view.get(task_id))

    def _placed(self, info: TaskInfo) -> TaskInfo:
        """Return what is known of a task with the whole path: whoever reads it may stand anywhere."""
        return info if info.path is None else replace(info, path=self._located(info.path))

    def _located(self, path: str) -> str:
        """Return the whole path of a file of the queue, which may lie elsewhere."""
        return self._disk.where(path) if isinstance(self._disk, OsDisk) else os.path.join(self.where, path)

    def _check_owned(self, what: str, instead: str) -> None:
        if self.settings.frontier_mode == "index":
            raise Unsupported(f"{what}: the frontier of queue {self.name!r} is another tool's: {instead}")

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
        self._claiming.returned.append(entry.name)
        self._idle.wake()
        return id_of(entry.name) or self._view.id_of(entry)

    def cancel(self, task_ids: str | Iterable[str]) -> list[str]:
        ids = checks.check_ids(task_ids)
        self._check_owned("cancel", f"remove the file from {self.settings.frontier}")
        with self._trouble("cancel"):
            for task_id in ids:
                name = self._view.current(encode(task_id))
                if not (self._cancel(name) or self._cancel(name)):  # it may be on its way to where we had looked
                    raise TaskNotFound(f"task {task_id!r} is not waiting, running or failed")
        return ids

    def _cancel(self, name: str) -> bool:
        """Cancel a task wherever it waits; False if it was nowhere, or is over."""
        # In the order in which a task moves, so that it cannot slip by.
        scheduled = sum(self._cancel_scheduled(path) for path in self._schedule.places(name))
        return scheduled + sum(self._log.cancel(entry) for entry in self._view.places(name)) > 0

    def _cancel_scheduled(self, path: str) -> bool:
        # By its entry in the frontier: workers agree on that name only, and may be about to make it.
        entry = self._schedule.expose(path)
        if entry is None:
            return False
        done = self._log.cancel(entry)
        self._schedule.withdraw(path)
        return done

    def purge(self) -> int:
        self._check_owned("purge", f"remove the files from {self.settings.frontier}")
        with self._trouble("purge"):
            scheduled = self._schedule.paths()
            gone = sum(self._cancel_scheduled(path) for path in scheduled)
            names = {path.rpartition("/")[2].removesuffix(".json") for path in scheduled}
            for name in names | {entry.name for entry in self._view.frontier()}:
                gone += sum(self._log.cancel(entry) for entry in self._view.places(name))
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

    def _trouble(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Word what goes wrong in an operation that needs the queue to be open."""
        self._check_open()
        return trouble(what, self.where)


def _forked() -> None:
    for queue in list(_LIVE):
        queue._forked()


os.register_at_fork(after_in_child=_forked)
