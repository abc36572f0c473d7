"""A queue that nothing happened to but normal operation is clean in every state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fsck_kit import Ground

from dfq.config import Settings
from dfq.providers.filesystem import FilesystemQueue


def cancelled(ground: Ground) -> None:
    ground.push()
    ground.queue.cancel("t")


def cancelled_before_it_was_due(ground: Ground) -> None:
    ground.push(delay=100)
    ground.queue.cancel("t")


def cancelled_and_pushed_again(ground: Ground) -> None:
    cancelled(ground)
    ground.push()


def rerun(ground: Ground) -> None:
    ground.done()
    ground.push(if_exists="rerun")


def rerun_and_done(ground: Ground) -> None:
    rerun(ground)
    ground.queue.ack(ground.claim())


def released(ground: Ground) -> None:
    ground.push()
    ground.queue.nack(ground.claim(), error="later", delay=100, count=False)


def redriven(ground: Ground) -> None:
    ground.dead()
    ground.queue.retry("t")


def bad_task_buried(ground: Ground) -> None:
    ground.task().write_bytes(b"not json")
    assert ground.queue.poll() == []
    assert ground.queue.counts().failed == 1


def with_odd_ids(ground: Ground) -> None:
    for name in ("24/7 plumber", "~%", ".hidden", "ü" * 300, "x" * 4096, "-", "a\nb"):
        ground.push(name)
    held = ground.queue.poll(3)
    ground.queue.ack(held.pop())
    ground.queue.nack(held.pop(), error="é" * 5000)
    ground.queue.poll(3)
    ground.held = held  # type: ignore[attr-defined]


def detached(ground: Ground) -> None:
    ground.push()
    ground.queue.poll_detached()


def leased(ground: Ground) -> None:
    ground.push()
    ground.held = ground.claim()  # type: ignore[attr-defined]


STATES: dict[str, Callable[[Ground], None]] = {
    "empty": lambda ground: None,
    "pending": lambda ground: ground.push(),
    "in every lane": lambda ground: [ground.push(f"t{lane}", priority=lane) for lane in range(10)] and None,
    "leased": leased,
    "detached": detached,
    "scheduled": lambda ground: ground.push(delay=100),
    "released": released,
    "failed": lambda ground: ground.dead(),
    "redriven": redriven,
    "completed": lambda ground: ground.done(),
    "cancelled": cancelled,
    "cancelled before it was due": cancelled_before_it_was_due,
    "cancelled and pushed again": cancelled_and_pushed_again,
    "put back": rerun,
    "put back and completed": rerun_and_done,
    "paused": lambda ground: ground.queue.pause(),
    "bad task buried": bad_task_buried,
    "odd ids": with_odd_ids,
}


@pytest.mark.parametrize("state", STATES)
def test_is_clean(ground: Ground, state: str) -> None:
    STATES[state](ground)
    before = ground.tree_of_files()
    assert ground.check() == []
    assert ground.check(repair=True) == []
    assert ground.tree_of_files() == before, "a clean queue was changed"


def test_with_stubs_is_clean(tmp_path: Path) -> None:
    ground = Ground(tmp_path, on_ack="delete")
    ground.done()
    assert ground.check(repair=True) == []
    ground.queue.close()


def test_without_unnamed_files_is_clean(ground: Ground) -> None:
    """Where the filesystem cannot make a file without a name, each file begins as a temporary one."""
    ground.queue._disk._tmpfile = False  # type: ignore[attr-defined]
    ground.done("a")
    ground.dead("b")
    ground.push("c")
    assert ground.check() == []


def test_a_busy_queue_is_clean(ground: Ground) -> None:
    """Workers are in the middle of everything all the time, and nothing of it is a finding."""
    over = threading.Event()
    settings = Settings(root=ground.root, shards=4, durability="full", max_attempts=1, lease=60.0)

    def work(n: int) -> None:
        with FilesystemQueue.open("q", settings) as queue:
            while not over.is_set():
                queue.push({}, id=None, delay=0.01 if n else 0)
                for task in queue.poll(3):
                    queue.nack(task, error="no") if hash(task.id) % 5 == 0 else queue.ack(task)
                if n:
                    queue.retry()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        found = [list(ground.queue.fsck(repair=n == 2, settle=3)) for n in range(3)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert found == [[], [], []]
    ground.queue.retry()
    with FilesystemQueue.open("q", settings) as queue:
        while tasks := queue.poll(100):
            for task in tasks:
                queue.ack(task)
        counts = queue.counts()
    assert counts.pending + counts.leased + counts.failed == 0
    assert ground.check() == []
