"""Every operation of a queue as a case for calls.py: how it is prepared, and what must hold if it was cut off."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crash_kit import assert_over, files, open_plain, witnesses, work_off
from crash_operations import (
    OPERATIONS,
    Operation,
    check_what_is_left,
    claimed,
    done_but_not_swept,
    push,
)
from keeping_kit import DAY, Clock

import dfq
from dfq.config import Settings
from dfq.ports import OsDisk
from dfq.providers.filesystem import FilesystemQueue

Act = Callable[[], Any]
MONTHS = 61 * DAY  # longer than anything is kept


@dataclass(frozen=True)
class Left:
    """What an operation left that was cut off."""

    folder: Path
    durability: str
    where: str
    returned: bool  # it had done everything

    def open(self, **settings: Any) -> FilesystemQueue:
        return open_plain(self.folder, durability=self.durability, **settings)

    def open_later(self, seconds: float) -> FilesystemQueue:
        """Open it with a clock that is so far ahead."""
        clock = Clock()
        clock.pass_by(seconds)
        return timed(self.folder, self.durability, clock) if seconds else self.open()


@dataclass(frozen=True)
class Case:
    """`prepare` sets the scene in the process that will be killed and returns what is to be cut off."""

    name: str
    prepare: Callable[[Path, str], Act]
    check: Callable[[Left], None]  # raises AssertionError; leaves the queue with nothing to do
    fsck: bool = True  # such a queue can be checked
    ahead: float = 0.0  # seconds by which the clock is ahead of those who look at what is left


def case_of(operation: Operation) -> Case:
    """Return an operation as a case."""

    def prepare(folder: Path, durability: str) -> Act:
        queue = open_plain(folder, durability=durability, **operation.settings)
        scene = operation.before(queue)
        return lambda: operation.act(queue, scene)

    def check(left: Left) -> None:
        settings = {"durability": left.durability, **operation.settings}
        check_what_is_left(operation, left.folder, settings, left.where, returned=left.returned)

    return Case(operation.name, prepare, check)


# -- making and filling a queue ---------------------------------------------------------------------


def first_push(folder: Path, durability: str) -> Act:
    settings = Settings(root=folder.parent, lease=60.0, shards=1, durability=durability)
    return lambda: push(FilesystemQueue.open(folder.name, settings))


def many() -> list[dfq.Push]:
    return [dfq.Push({"n": 1}, id=name, delay=0.02 if name == "later" else 0) for name in ("t", "u", "later")]


def push_many(folder: Path, durability: str) -> Act:
    queue = open_plain(folder, durability=durability)
    return lambda: queue.push_many(many())


def check_push_many(left: Left) -> None:
    if not left.returned:
        with left.open() as fresh:
            fresh.push_many(many(), if_exists="skip")  # what a caller that was never answered does
    assert sorted(work_off(left.folder, durability=left.durability)) == ["later", "t", "u"], left.where
    assert_over(left.folder, "later", "t", "u")


# -- ends -------------------------------------------------------------------------------------------


def check_ack_delete(left: Left) -> None:
    ran = work_off(left.folder, durability=left.durability, on_ack="delete")
    assert_over(left.folder, "t")
    assert len(ran) <= (0 if left.returned else 1), f"{left.where}: it ran again"
    assert witnesses(left.folder)["t"]["stub"], left.where
    assert len(files(left.folder, "retired")) == 1, left.where


def ack_delete(folder: Path, durability: str) -> Act:
    queue = open_plain(folder, durability=durability, on_ack="delete")
    task = claimed(queue)
    return lambda: queue.ack(task, result="first")


PURGED = ("dead", "held", "scheduled", "waiting")


def purge(folder: Path, durability: str) -> Act:
    queue = open_plain(folder, durability=durability, max_attempts=1)
    for name in PURGED[:2]:
        queue.push({}, id=name)
        (task,) = queue.poll()
        if name == "dead":
            queue.nack(task, error="no use")
    queue.push({}, id="waiting", priority=9)
    queue.push({}, id="scheduled", delay=1000)
    return lambda: (queue.purge(), task)


def cancel_scheduled(folder: Path, durability: str) -> Act:
    queue = open_plain(folder, durability=durability)
    queue.push({}, id="scheduled", delay=1000)
    return lambda: queue.cancel("scheduled")


def checked_cancels(*ids: str) -> Callable[[Left], None]:
    """Return a check that all is cancelled, or still there and can be."""

    def check(left: Left) -> None:
        with left.open(max_attempts=1) as fresh:
            for name in ids:
                info = fresh.get(name)  # raises if it was lost
                assert info.cancelled or not left.returned, f"{left.where}: {name} is {info.state}"
            fresh.purge()
            assert all(fresh.get(name).cancelled for name in ids), left.where
            assert fresh.poll(10, wait=0.05) == [], left.where
        assert_over(left.folder, *ids)
        assert len(files(left.folder, "retired")) == len(ids), left.where

    return check


# -- again ------------------------------------------------------------------------------------------


def rerun(folder: Path, durability: str) -> Act:
    queue = open_plain(folder, durability=durability)
    queue.ack(claimed(queue), result="zero")
    return lambda: queue.push({"n": 2}, id="t", if_exists="rerun")


def check_rerun(left: Left) -> None:
    with left.open() as fresh, contextlib.suppress(dfq.TaskExists):
        if not left.returned:
            fresh.push({"n": 2}, id="t", if_exists="rerun")
    assert work_off(left.folder, durability=left.durability) == ["t"], left.where
    found = [json.loads(path.read_bytes()) for path in (left.folder / "completed").rglob("*.json")]
    results = {record["epoch"]: record["result"] for record in found}
    assert len(found) == 2, f"{left.where}: {found}"
    assert results == {0: "zero", 1: "later"}, left.where
    assert files(left.folder, "frontier", "scheduled", "active-leases", "failed", "retired") == [], left.where


# -- pausing ----------------------------------------------------------------------------------------


def pausing(folder: Path, durability: str) -> Act:
    queue = open_plain(folder, durability=durability)
    push(queue)
    return queue.pause


def resuming(folder: Path, durability: str) -> Act:
    queue = open_plain(folder, durability=durability)
    push(queue)
    queue.pause()
    return queue.resume


def checked_pause(wanted: bool) -> Callable[[Left], None]:
    def check(left: Left) -> None:
        with left.open() as fresh:
            assert not left.returned or fresh.paused == wanted, left.where
            if fresh.paused:
                assert fresh.poll() == [], f"{left.where}: handed out although it is paused"
                fresh.resume()
        assert work_off(left.folder, durability=left.durability) == ["t"], left.where
        assert_over(left.folder, "t")

    return check


# -- clearing up ------------------------------------------------------------------------------------


def timed(folder: Path, durability: str, clock: Clock) -> FilesystemQueue:
    folder.mkdir(exist_ok=True)
    settings = Settings(root=folder.parent, lease=60.0, shards=1, durability=durability, max_attempts=1)
    return FilesystemQueue(folder.name, settings, OsDisk(str(folder)), clock=clock, where=str(folder))


def retention(folder: Path, durability: str) -> Act:
    clock = Clock()
    queue = timed(folder, durability, clock)
    for name in ("done", "twice", "twice", "dead", "cancelled"):
        queue.push({}, id=name, if_exists="rerun")
        if name == "cancelled":
            queue.cancel(name)
            continue
        (task,) = queue.poll()
        if name == "dead":
            queue.nack(task, error="no use")
        else:
            queue.ack(task)
    queue.push({}, id="waiting", delay=2 * MONTHS)
    clock.pass_by(120)  # clearing up is not done more often than once a minute
    assert queue.poll() == []  # from here on the clock is known to be steady
    clock.pass_by(MONTHS)
    return queue.poll


def check_retention(left: Left) -> None:
    clock = Clock()
    clock.pass_by(MONTHS)
    with timed(left.folder, left.durability, clock) as fresh:
        assert fresh.get("waiting").state == "scheduled", left.where
        assert fresh.poll() == [], left.where
        for _ in range(5):  # a dead letter goes in steps: it ends as expired, and that is kept for an hour
            if not (kept := files(left.folder, "frontier", "active-leases", "completed", "failed", "retired")):
                break
            assert [name for name in kept if "dead" not in name] == [], f"{left.where}: {kept}"
            clock.pass_by(2 * 3600)
            assert fresh.poll() == [], left.where
        assert not kept, f"{left.where}: {kept}"
    with timed(left.folder, left.durability, clock) as fresh:
        for name in ("done", "twice", "dead", "cancelled"):
            fresh.push({}, id=name)
        for task in fresh.poll(10):
            fresh.ack(task)
        assert fresh.cancel("waiting"), left.where
    assert_over(left.folder, "cancelled", "dead", "done", "twice", "waiting")


def fsck_repair(folder: Path, durability: str) -> Act:
    """A completion that was not finished, and a dead letter that is not shown."""
    queue = open_plain(folder, durability=durability, max_attempts=1)
    done_but_not_swept(queue)
    queue.push({}, id="dead", priority=9)
    (task,) = queue.poll()
    queue.nack(task, error="no use")
    (folder / "failed/0/dead.json").unlink()

    def repair() -> None:
        left = [f"{f.code} {f.path}" for f in queue.fsck(repair=True, settle=0) if not f.repaired]
        if left:  # it says so: a folder could not be read
            raise dfq.QueueUnavailable(f"not repaired: {left}")

    return repair


def check_fsck_repair(left: Left) -> None:
    if left.returned:
        assert files(left.folder, "failed") == ["failed/0/dead.json"], left.where
        assert witnesses(left.folder)["t"]["result"] == "first", left.where
    assert work_off(left.folder, durability=left.durability, max_attempts=1) == ["dead"], left.where
    assert_over(left.folder, "dead", "t")
    assert witnesses(left.folder)["t"]["result"] == "first", left.where


# -- an index ---------------------------------------------------------------------------------------


def index_queue(folder: Path, durability: str) -> dfq.QueueManager:
    (folder / "target-tiles/29.5").mkdir(parents=True, exist_ok=True)
    (folder / "target-tiles/29.5/dentist.json").write_bytes(b'{"n": 1}')
    trees: dict[str, Any] = {"frontier": folder / "target-tiles", "completed": folder / "scraped-tiles"}
    settings: dict[str, Any] = {"frontier_mode": "index", "durability": durability, "lease": 60.0, "shards": 1}
    return dfq.open_queue("tiles", folder / "root", **settings, **trees)


def index_claim_and_ack(folder: Path, durability: str) -> Act:
    queue = index_queue(folder, durability)
    return lambda: [queue.ack(task, result="first") for task in queue.poll()]


def check_index(left: Left) -> None:
    end = time.monotonic() + 10
    ran = 0
    with index_queue(left.folder, left.durability) as fresh:
        while fresh.counts().completed == 0 or fresh.counts().leased:
            assert time.monotonic() < end, f"{left.where}: not worked off: {fresh.counts()}"
            for task in fresh.poll(wait=0.05):
                fresh.ack(task, result="later")
                ran += 1
    with index_queue(left.folder, left.durability) as fresh:
        assert fresh.poll(wait=0.05) == [], left.where
    trees = files(left.folder, "target-tiles", "scraped-tiles")
    assert trees == ["scraped-tiles/29.5/dentist.json", "target-tiles/29.5/dentist.json"], f"{left.where}: {trees}"
    result = json.loads((left.folder / trees[0]).read_bytes())["result"]
    assert (result, ran) == ("later", 1) if ran else ("first", 0), f"{left.where}: {result}, ran {ran} times"
    assert not (left.returned and ran), f"{left.where}: what had returned was undone"
    assert files(left.folder, "root/tiles/active-leases", "root/tiles/failed") == [], left.where


CASES: list[Case] = [
    Case("open", first_push, case_of(Operation("push", lambda q, _: None, pushes=True)).check),
    *(case_of(operation) for operation in OPERATIONS),
    Case("push_many", push_many, check_push_many),
    Case("ack-delete", ack_delete, check_ack_delete),
    Case("cancel-scheduled", cancel_scheduled, checked_cancels("scheduled")),
    Case("purge", purge, checked_cancels(*PURGED)),
    Case("rerun", rerun, check_rerun),
    Case("pause", pausing, checked_pause(True)),
    Case("resume", resuming, checked_pause(False)),
    Case("retention", retention, check_retention, ahead=MONTHS),
    Case("fsck-repair", fsck_repair, check_fsck_repair),
    Case("index-claim-ack", index_claim_and_ack, check_index, fsck=False),
]
