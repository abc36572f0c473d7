"""Two workers reclaim one stale lease: ADR 010's way lets both win, the slot log lets one.

The interleavings are forced, not hoped for: a disk stops one worker right before a call while another one runs.
The checks are tried on sabotaged slot logs too, because a check that cannot fail proves nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_kit import OPEN_STATES, WatchedDisk, assert_over, die, files, forked, open_on, open_plain, reap, witnesses

import dfq
from dfq import slotlog
from dfq.providers.filesystem import FilesystemQueue
from dfq.slotlog import SlotLog

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SHORT = 0.15  # a lease that soon runs out


# -- the protocol of ADR 010 -----------------------------------------------------------------------


def reclaim_as_in_010(lease: Path, me: str, between: Callable[[], None] = lambda: None) -> bool:
    """Judge the lease stale, delete it, create one's own: True if the lease is now "ours"."""
    try:
        if json.loads(lease.read_text())["expiry_timestamp"] > time.time():
            return False
    except FileNotFoundError:
        pass
    between()
    with contextlib.suppress(FileNotFoundError):
        lease.unlink()
    try:
        fd = os.open(lease, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(fd, json.dumps({"worker_id": me, "expiry_timestamp": time.time() + 600}).encode())
    os.close(fd)
    return True


def check_one_winner(winners: list[str]) -> None:
    assert len(winners) == 1, f"{' and '.join(winners)} both hold the lease"


def test_deleting_a_stale_lease_lets_two_workers_win(tmp_path: Path) -> None:
    lease = tmp_path / "t.lease"
    lease.write_text(json.dumps({"worker_id": "dead", "expiry_timestamp": 0}))
    winners: list[str] = []

    def b_runs() -> None:
        if reclaim_as_in_010(lease, "B"):
            winners.append("B")

    if reclaim_as_in_010(lease, "A", between=b_runs):
        winners.append("A")
    with pytest.raises(AssertionError, match="B and A both hold"):
        check_one_winner(winners)


def test_deleting_a_stale_lease_works_when_nobody_is_in_between(tmp_path: Path) -> None:
    lease = tmp_path / "t.lease"
    lease.write_text(json.dumps({"worker_id": "dead", "expiry_timestamp": 0}))
    check_one_winner([me for me in "AB" if reclaim_as_in_010(lease, me)])


# -- the slot log, forced into the same corner -----------------------------------------------------


class Stage:
    """A queue in a folder, and workers on it that can be stopped before a call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = contextlib.ExitStack()

    def worker(self, **settings: Any) -> FilesystemQueue:
        return self._stack.enter_context(open_plain(self.folder, durability="fast", **settings))

    def stopped_worker(
        self, call: str, path_starts: str, meanwhile: Callable[[], None], **settings: Any
    ) -> tuple[FilesystemQueue, WatchedDisk]:
        """A worker that, once its disk is armed, stops right before one call while something else happens."""
        todo = [meanwhile]

        def before(_: int, name: str, args: tuple[Any, ...]) -> None:
            named = [a for a in args if isinstance(a, str)]
            if todo and name == call and (not path_starts or any(a.startswith(path_starts) for a in named)):
                todo.pop()()

        disk = WatchedDisk(self.folder, before)
        queue = self._stack.enter_context(open_on(disk, self.folder, durability="fast", **settings))
        return queue, disk

    def stale_lease(self) -> None:
        """Leave a lease of a worker that was killed."""
        self.worker().push({"n": 1}, id="t")
        assert reap(forked(lambda: (open_plain(self.folder).poll(), die())[1])) < 0
        assert len(files(self.folder, "active-leases")) == 1

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    opened = Stage(tmp_path / "q")
    yield opened
    opened.close()


def poll_soon(queue: FilesystemQueue) -> dfq.Task:
    (task,) = queue.poll(wait=5)
    return task


def accepted(queue: FilesystemQueue, task: dfq.Task, result: str) -> bool:
    try:
        queue.ack(task, result=result)
    except dfq.LeaseLost:
        return False
    return True


def check_the_slower_thief_gets_nothing(stage: Stage) -> None:
    """A and B judge the same lease stale; B takes it over while A is about to."""
    stage.stale_lease()
    b = stage.worker()
    won: list[dfq.Task] = []
    a, disk = stage.stopped_worker("create", "active-leases/", lambda: won.extend(b.poll()))
    disk.armed = True
    mine = a.poll()
    assert [task.token for task in won] == [2]
    assert mine == [], "both thieves hold the task"
    assert accepted(b, won[0], "B")
    assert_over(stage.folder, "t")


def check_a_thief_of_a_task_that_is_over_is_undone(stage: Stage) -> None:
    """A judges a lease stale; before it creates its slot, B takes over, completes and sweeps."""
    stage.stale_lease()
    b = stage.worker()
    a, disk = stage.stopped_worker("create", "active-leases/", lambda: b.ack(b.poll()[0], result="B"))
    disk.armed = True
    assert a.poll() == [], "a task that was completed is handed out again"
    assert_over(stage.folder, "t")
    assert witnesses(stage.folder)["t"]["result"] == "B"


def check_a_first_claim_of_a_task_that_is_over_is_undone(stage: Stage) -> None:
    """The same with a task that nobody had claimed before."""
    b = stage.worker()
    b.push({"n": 1}, id="t")
    a, disk = stage.stopped_worker("create", "active-leases/", lambda: b.ack(b.poll()[0], result="B"))
    disk.armed = True
    assert a.poll() == [], "a task that was completed is handed out again"
    assert_over(stage.folder, "t")


def check_an_ack_that_is_overtaken_by_a_thief_is_refused(stage: Stage) -> None:
    """A is stopped inside its ack until B has taken over: A's completion must not count."""
    b = stage.worker()
    b.push({"n": 1}, id="t")
    stolen: list[dfq.Task] = []
    # Whatever is linked first, that is where A stands when B takes over.
    a, disk = stage.stopped_worker("link", "", lambda: stolen.append(poll_soon(b)), lease=SHORT, auto_heartbeat=False)
    (task,) = a.poll()
    disk.armed = True
    assert not accepted(a, task, "A"), "the ack of a stolen lease was accepted"
    assert accepted(b, stolen[0], "B"), "the holder's ack was refused"
    assert_over(stage.folder, "t")
    assert witnesses(stage.folder)["t"]["token"] == 2


def check_an_ack_that_is_overtaken_by_a_completion_is_refused(stage: Stage) -> None:
    """A is stopped inside its ack until B has taken over, completed and swept: the slots are free again."""
    b = stage.worker()
    b.push({"n": 1}, id="t")
    a, disk = stage.stopped_worker(
        "link", "", lambda: b.ack(poll_soon(b), result="B"), lease=SHORT, auto_heartbeat=False
    )
    (task,) = a.poll()
    disk.armed = True
    assert not accepted(a, task, "A"), "a second completion was accepted"
    assert_over(stage.folder, "t")
    assert witnesses(stage.folder)["t"]["result"] == "B"


def check_a_late_heartbeat_touches_nothing(stage: Stage) -> None:
    """A is stopped inside its heartbeat until B has taken over, completed and swept."""
    b = stage.worker()
    b.push({"n": 1}, id="t")
    a, disk = stage.stopped_worker(
        "write", "", lambda: b.ack(poll_soon(b), result="B"), lease=SHORT, auto_heartbeat=False
    )
    (task,) = a.poll()
    disk.armed = True
    with contextlib.suppress(dfq.LeaseLost):  # it may learn of it now or at its next step
        a.heartbeat(task)
    assert files(stage.folder, *OPEN_STATES) == [], "the heartbeat brought a lease back"
    assert not accepted(a, task, "A")
    assert_over(stage.folder, "t")


def check_a_renewed_lease_is_still_held(stage: Stage) -> None:
    """A heartbeat must keep the lock that shows that the worker lives."""
    a, b = stage.worker(), stage.worker()
    a.push({"n": 1}, id="t")
    (task,) = a.poll()
    a.heartbeat(task)
    assert b.poll() == [], "a lease that was renewed is taken over at once"
    assert accepted(a, task, "A")
    assert_over(stage.folder, "t")


CHECKS = [
    check_the_slower_thief_gets_nothing,
    check_a_thief_of_a_task_that_is_over_is_undone,
    check_a_first_claim_of_a_task_that_is_over_is_undone,
    check_an_ack_that_is_overtaken_by_a_thief_is_refused,
    check_an_ack_that_is_overtaken_by_a_completion_is_refused,
    check_a_late_heartbeat_touches_nothing,
    check_a_renewed_lease_is_still_held,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
def test_the_slot_log_lets_one_win(check: Callable[[Stage], None], stage: Stage) -> None:
    check(stage)


@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
def test_a_stolen_lease_is_of_no_use(verb: str, stage: Stage) -> None:
    a, b = stage.worker(lease=SHORT, auto_heartbeat=False), stage.worker()
    a.push({"n": 1}, id="t")
    (old,) = a.poll()
    new = poll_soon(b)
    before = {path: (stage.folder / path).read_bytes() for path in files(stage.folder, *OPEN_STATES)}
    with pytest.raises(dfq.LeaseLost, match="'t'"):
        getattr(a, verb)(old)
    assert old.lost
    assert before == {path: (stage.folder / path).read_bytes() for path in files(stage.folder, *OPEN_STATES)}
    assert witnesses(stage.folder) == {}
    b.heartbeat(new)
    assert accepted(b, new, "B")
    assert_over(stage.folder, "t")


# -- sabotage --------------------------------------------------------------------------------------


def sabotage(monkeypatch: pytest.MonkeyPatch, method: str, *changes: tuple[str, str]) -> None:
    """Replace a method of SlotLog by itself with some text changed."""
    source = textwrap.dedent(inspect.getsource(getattr(SlotLog, method)))
    for old, new in changes:
        if source.count(old) != 1:
            pytest.fail(f"SlotLog.{method} has changed: {old!r} is not in it once; adapt the mutant")
        source = source.replace(old, new)
    scope: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source, vars(slotlog), scope)  # noqa: S102
    monkeypatch.setattr(SlotLog, method, scope[method])


BY_PATH = """\
claim.hold.rewrite(b"")  # here it is stopped
    with open(self._store.disk.folder + "/" + self._tree.slot(claim.entry.name, claim.generation), "wb") as f:
        f.write(lease_bytes(record))"""
BY_RENAME = """\
path = self._store.disk.folder + "/" + self._tree.slot(claim.entry.name, claim.generation)
    with open(path + ".new", "wb") as f:
        f.write(lease_bytes(record))
    __import__("os").replace(path + ".new", path)"""

MUTANTS: dict[str, tuple[str, list[tuple[str, str]], Callable[[Stage], None]]] = {
    "no look at the witness and the task after the claim": (
        "_take",
        [
            (
                "if store.exists(entry.witness) or (raw := self._slots.read_task(entry)) is None:",
                """if (raw := self._slots.read_task(entry) or b'{"id": "t", "payload": 1}') is None:""",
            )
        ],
        check_a_thief_of_a_task_that_is_over_is_undone,
    ),
    "no look after a first claim": (
        "_take",
        [
            (
                "if store.exists(entry.witness) or (raw := self._slots.read_task(entry)) is None:",
                """if (raw := self._slots.read_task(entry) or b'{"id": "t", "payload": 1}') is None:""",
            )
        ],
        check_a_first_claim_of_a_task_that_is_over_is_undone,
    ),
    "ack without a DONE slot": (
        "complete",
        [("if not store.name(staged, slot) and not self._is_mine(slot, claim):", "if False:")],
        check_an_ack_that_is_overtaken_by_a_thief_is_refused,
    ),
    "ack that takes EEXIST on the slot for success": (
        "complete",
        [
            (
                "if not store.name(staged, slot) and not self._is_mine(slot, claim):",
                "if store.name(staged, slot) is None:",
            )
        ],
        check_an_ack_that_is_overtaken_by_a_thief_is_refused,
    ),
    "ack that takes EEXIST on the witness for success": (
        "complete",
        [
            (
                "if not store.name(staged, done) and not self._is_mine(done, claim):",
                "if store.name(staged, done) is None:",
            )
        ],
        check_an_ack_that_is_overtaken_by_a_completion_is_refused,
    ),
    "claim that takes EEXIST on its slot for success": (
        "_take",
        [("    return Raced()", "    hold = store.take_up(slot)")],
        check_the_slower_thief_gets_nothing,
    ),
    "heartbeat through the name": (
        "heartbeat",
        [("claim.hold.rewrite(lease_bytes(record))", BY_PATH)],
        check_a_late_heartbeat_touches_nothing,
    ),
    "heartbeat by renaming a new lease over the old": (
        "heartbeat",
        [("claim.hold.rewrite(lease_bytes(record))", BY_RENAME)],
        check_a_renewed_lease_is_still_held,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_sabotaged_slot_log_is_caught(mutant: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    method, changes, check = MUTANTS[mutant]
    sabotage(monkeypatch, method, *changes)
    with pytest.raises(AssertionError):
        check(stage)
