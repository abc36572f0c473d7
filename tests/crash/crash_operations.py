"""Operations to be interrupted, and what must hold of whatever an interruption leaves."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crash_kit import (
    WatchedDisk,
    assert_over,
    die,
    files,
    forked,
    open_on,
    open_plain,
    reap,
    witnesses,
    work_off,
)

import dfq
from dfq.providers.filesystem import FilesystemQueue

Queue = FilesystemQueue


@dataclass(frozen=True)
class Operation:
    """Something to be interrupted: `before` sets the scene undisturbed, `act` is what happens at risk."""

    name: str
    act: Callable[[Queue, Any], Any]
    before: Callable[[Queue], Any] = lambda q: None
    settings: dict[str, Any] = field(default_factory=dict)
    pushes: bool = False  # it brings the task in, so before it there is none
    moves: bool = False  # half-way the task may be seen in two places


def push(q: Queue) -> None:
    q.push({"n": 1}, id="t")


def claimed(q: Queue) -> dfq.Task:
    push(q)
    return q.poll()[0]


def dead(q: Queue) -> None:
    q.nack(claimed(q), error="no use")
    assert q.counts().failed == 1


def due(q: Queue) -> None:
    q.push({"n": 1}, id="t", delay=0.02)
    time.sleep(0.03)


def of_a_dead_worker(q: Queue) -> None:
    push(q)
    assert reap(forked(lambda: (open_plain(Path(q.where)).poll(), die())[1])) == -signal.SIGKILL


def done_but_not_swept(q: Queue) -> None:
    """A worker died right after its completion had happened: the DONE slot is all that there is of it."""
    push(q)
    folder = Path(q.where)

    def half_an_ack() -> None:
        def before(_: int, name: str, args: tuple[Any, ...]) -> None:
            if name == "link" and args[1].startswith("completed/"):
                die()

        disk = WatchedDisk(folder, before)
        worker = open_on(disk, folder)
        (task,) = worker.poll()
        disk.armed = True
        worker.ack(task, result="first")

    assert reap(forked(half_an_ack)) == -signal.SIGKILL


def leased_elsewhere(q: Queue) -> Queue:
    """Somebody alive holds the task; the holder is returned so that it stays alive."""
    push(q)
    holder = open_plain(Path(q.where))
    holder.held = holder.poll()  # type: ignore[attr-defined]
    return holder


OPERATIONS = [
    Operation("push", lambda q, _: push(q), pushes=True),
    Operation("schedule", lambda q, _: q.push({"n": 1}, id="t", delay=0.02), pushes=True),
    Operation("promote", lambda q, _: q.poll(), due, moves=True),
    Operation("claim", lambda q, _: q.poll(), push),
    Operation("heartbeat", lambda q, task: q.heartbeat(task), claimed),
    Operation("ack", lambda q, task: q.ack(task, result="first"), claimed),
    Operation("nack", lambda q, task: q.nack(task, error="again"), claimed),
    Operation("bury", lambda q, task: q.nack(task, error="no use"), claimed, {"max_attempts": 1}),
    Operation("bury-of-dead-worker", lambda q, _: q.poll(), of_a_dead_worker, {"max_attempts": 1}),
    Operation("takeover", lambda q, _: q.poll(), of_a_dead_worker),
    Operation("finish", lambda q, _: q.poll(), done_but_not_swept),
    Operation("retry", lambda q, _: q.retry("t"), dead, {"max_attempts": 1}),
    Operation("cancel", lambda q, _: q.cancel("t"), push),
    Operation("cancel-leased", lambda q, _: q.cancel("t"), leased_elsewhere),
    Operation("cancel-dead", lambda q, _: q.cancel("t"), dead, {"max_attempts": 1}),
]


def check_what_is_left(
    operation: Operation, folder: Path, settings: dict[str, Any], where: str, *, returned: bool
) -> None:
    with open_plain(folder, **settings) as fresh:
        counts = fresh.counts()
        total = counts.pending + counts.leased + counts.scheduled + counts.completed + counts.failed
        seen = list(fresh.tasks())
        gone = fresh.counts() == dfq.Counts() and "cancel" in operation.name
        assert {info.id for info in seen} <= {"t"}, where
        if operation.pushes and not returned:
            assert total <= 1, where
            with contextlib.suppress(dfq.TaskExists):
                fresh.push({"n": 1}, id="t")  # what a caller that was never answered does
        elif not gone:
            assert total == 1 or (operation.moves and total == 2), where
            assert fresh.get("t").id == "t", where
    ran = work_off(folder, **settings)
    try:
        assert_over(folder, "t")
    except AssertionError as e:
        raise AssertionError(f"{where}: {e}") from None
    witness = witnesses(folder)["t"]
    settled = witness["state"] == "cancelled" or witness["result"] == "first"
    assert len(ran) == (0 if settled else 1), f"{where}: ran {ran} and has {witness}"
    if returned and operation.name in ("ack", "finish", "cancel", "cancel-leased", "cancel-dead"):
        assert settled, f"{where}: what had returned was undone"
    assert bool(files(folder, "retired")) == (witness["state"] == "cancelled"), where
