"""A call that fails in the middle of an operation: nothing is lost, counted or told that did not happen."""

from __future__ import annotations

import errno
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crash_kit import WatchedDisk, open_descriptors, open_on, open_plain, work_off

import dfq
from dfq.ports import UNKNOWN_BOOT, Machine, OsDisk
from dfq.providers.filesystem import FilesystemQueue
from dfq.queue import Push

Hook = Callable[[int, str, tuple[Any, ...]], None]


def failing(call: str, on: str, *, times: int = 1, code: int = errno.EIO) -> Hook:
    """Return a hook that makes a call on a path (part of which is `on`) fail so many times."""
    left = [times]

    def before(_: int, name: str, args: tuple[Any, ...]) -> None:
        if name == call and left[0] and any(on in str(arg) for arg in args):
            left[0] -= 1
            raise OSError(code, os.strerror(code), str(args[0]))

    return before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "q"


def sick(folder: Path, hook: Hook, **settings: Any) -> FilesystemQueue:
    folder.mkdir(exist_ok=True)
    disk = WatchedDisk(folder, hook)
    queue = open_on(disk, folder, **settings)
    disk.armed = True
    return queue


def test_a_task_that_cannot_be_read_after_the_claim_has_not_used_an_attempt(folder: Path) -> None:
    open_plain(folder).push({}, id="t")
    with sick(folder, failing("open", "frontier/", code=errno.EMFILE)) as q, pytest.raises(dfq.QueueUnavailable):
        q.poll()
    with open_plain(folder) as q:
        (task,) = q.poll(wait=5)
        assert task.attempt == 1
        q.ack(task)


def test_an_ack_that_was_cut_short_can_be_finished(folder: Path) -> None:
    with sick(folder, failing("link", "completed/", code=errno.ENOSPC), lease=1.5) as q:
        q.push({}, id="t")
        (task,) = q.poll()
        with pytest.raises(dfq.QueueUnavailable):
            q.ack(task, result="first")
        q.heartbeat(task)
        threading.Event().wait(1.7)  # the library renews meanwhile, and must not take its own DONE slot for a thief
        assert not task.lost
        q.ack(task, result="second")
        assert q.get("t").result in ("first", "second")
        assert q.counts() == dfq.Counts(completed=1)


def test_an_ack_that_was_cut_short_is_the_completion_whoever_finishes_it(folder: Path) -> None:
    with sick(folder, failing("link", "completed/", times=99)) as q:
        q.push({}, id="t")
        (task,) = q.poll()
        with pytest.raises(dfq.QueueUnavailable):
            q.ack(task, result="first")
        with pytest.raises(dfq.LeaseLost):
            q.nack(task)
    assert work_off(folder) == []
    assert open_plain(folder).get("t").result == "first"


def test_a_shorter_lease_leaves_nothing_of_a_longer_one(folder: Path) -> None:
    with sick(folder, failing("unnamed", "", times=0), max_attempts=1) as q:
        q.push({}, id="t")
        (task,) = q.poll()
        q._disk.before = lambda _, name, args: _no_room(name)  # type: ignore[attr-defined]
        with pytest.raises(dfq.QueueUnavailable):
            q.nack(task, error="long " * 1000)
        q._disk.before = None  # type: ignore[attr-defined]
        q.heartbeat(task)
        lease = (folder / "active-leases/0/t.lease").read_bytes()
        assert b"long" not in lease
        q.ack(task)


def _no_room(name: str) -> None:
    if name == "unnamed":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_push_is_not_refused_for_having_been_completed_already(folder: Path) -> None:
    """A worker may complete a task before its push has returned."""
    for task_id in (None, "named"):
        other = open_plain(folder)

        def work(n: int, name: str, args: tuple[Any, ...], other: FilesystemQueue = other) -> None:
            if name == "fsync_dir" and "frontier/5/0" in str(args[0]):
                for task in other.poll():
                    other.ack(task)

        with sick(folder, work) as q:
            q.push({}, id=task_id)
            assert q.counts().completed >= 1
        other.close()


def test_an_id_that_is_twice_in_a_batch_is_pushed_once(folder: Path) -> None:
    with open_plain(folder) as q:
        twice = [Push({"n": 1}, id="t", delay=60), Push({"n": 2}, id="t", priority=9)]
        with pytest.raises(dfq.TaskExists):
            q.push_many(twice)
        assert q.counts() == dfq.Counts(scheduled=1)
        q.cancel("t")
        assert q.counts() == dfq.Counts()


@pytest.fixture
def few_files() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = open_descriptors() + 150
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_few_open_files_are_no_reason_to_lose_or_count_anything(folder: Path, few_files: int) -> None:
    with open_plain(folder, durability="fast") as q:
        assert len(q.push_many({"n": n} for n in range(1000))) == 1000
        held = q.poll(10_000)
        assert 20 < len(held) < few_files
        with pytest.raises(dfq.QueueUnavailable, match="ulimit"):
            q.poll(1)
        assert {task.attempt for task in held} == {1}
        q.ack_many(held)
        more = q.poll(10)
        assert [task.attempt for task in more] == [1] * 10
        q.ack_many(more)


def test_a_process_that_cannot_tell_its_boot_takes_nothing_from_the_living(folder: Path) -> None:
    nowhere = replace(Machine.this(), boot_id=UNKNOWN_BOOT)

    def opened(worker: str) -> FilesystemQueue:
        folder.mkdir(exist_ok=True)
        machine = replace(nowhere, worker_id=worker)
        settings = dfq.Settings(shards=1, durability="fast")
        return FilesystemQueue("q", settings, OsDisk(str(folder)), machine=machine, where=str(folder))

    one, other = opened("one"), opened("other")
    one.push({}, id="t")
    (task,) = one.poll()
    assert other.poll(wait=0.2) == []
    task._held.hold.close()  # type: ignore[attr-defined]  # as the kernel does when its process dies
    (again,) = other.poll(wait=5)
    assert again.attempt == 2
    one.close()
    other.close()


def test_a_payload_that_grows_when_it_is_written_comes_back_whole(folder: Path) -> None:
    with open_plain(folder) as q:
        text = "\0" * 200_000  # six characters each in JSON
        q.push(text, id="t")
        (task,) = q.poll()
        assert task.payload == text
        q.ack(task, result=text)
        assert q.get("t").result == text


def test_a_larger_payload_than_ours_may_be_is_read_all_the_same(folder: Path) -> None:
    with open_plain(folder, max_payload=2 * 1024 * 1024) as producer, open_plain(folder) as worker:
        producer.push("x" * 1_000_000, id="t")
        (task,) = worker.poll()
        assert len(task.payload) == 1_000_000
        worker.ack(task)


def test_a_dead_letter_with_many_long_errors_is_shown(folder: Path) -> None:
    with open_plain(folder, max_payload=1024, max_attempts=150, durability="fast") as q:
        q.push({}, id="t")
        for n in range(150):
            (task,) = q.poll()
            q.nack(task, error=f"{n} " + "e" * 4000)
        info = q.get("t")
        assert (info.state, len(info.errors)) == ("failed", 100)
        assert info.errors[-1]["error"].startswith("149")
        assert q.retry("t") == ["t"]
        q.ack(q.poll()[0])


def test_a_task_that_was_handed_out_too_often_can_still_be_retried_and_cancelled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfq.slotlog.MAX_SLOTS", 5)
    with open_plain(folder, durability="fast") as q:
        for task_id in ("retried", "cancelled"):
            q.push({}, id=task_id)
            while tasks := q.poll():
                q.nack(tasks[0], count=False)
            assert q.get(task_id).state == "failed"
            assert "times" in json.loads((folder / f"failed/0/{task_id}.json").read_text())["reason"]
        q.cancel("cancelled")
        q.retry("retried")
        (task,) = q.poll()
        assert task.id == "retried"
        q.ack(task)
        assert q.counts() == dfq.Counts(completed=1)


def test_a_receipt_cannot_name_a_file_outside(folder: Path) -> None:
    with open_plain(folder) as q:
        q.push({}, id="t")
        for name in ("../../queue", "a/b", "..", ".", "", "x~y", "\udcff"):
            with pytest.raises(dfq.InvalidTask):
                q.resume_lease(f"1.abc.5.{name}")


def test_taking_up_a_lease_again_and_again_leaks_nothing(folder: Path) -> None:
    with open_plain(folder) as q:
        q.push({}, id="t")
        (task,) = q.poll_detached()
        before = open_descriptors(collect=True)
        for _ in range(50):
            q.heartbeat(q.resume_lease(task.receipt))
        assert open_descriptors(collect=True) <= before + 1
        q.ack(q.resume_lease(task.receipt))


def test_a_lease_that_ran_out_can_neither_be_renewed_nor_given_back_nor_acked(folder: Path) -> None:
    with open_plain(folder, auto_heartbeat=False) as q:
        acts: list[Callable[[dfq.Task], None]] = [q.heartbeat, q.nack, q.ack]
        for act in acts:
            q.push({})
            (task,) = q.poll(lease=0.05)
            threading.Event().wait(0.06)
            with pytest.raises(dfq.LeaseLost, match="ran out"):
                act(task)
            assert task.lost
            q.ack(q.poll(wait=5)[0])


def test_a_task_is_lost_once_that_was_said(folder: Path) -> None:
    with open_plain(folder) as q:
        q.push({})
        (task,) = q.poll()
        q.ack(task)
        assert not task.lost
        with pytest.raises(dfq.LeaseLost):
            q.ack(task)
        assert task.lost
