"""What poll promises: order, batches, delays, waiting, and who gets what."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
from backends import Queues, claim, needs

import dfq
from dfq.queue import Push


def test_an_empty_queue_gives_nothing_at_once(queues: Queues) -> None:
    q = queues.open()
    start = time.monotonic()
    assert q.poll() == []
    assert q.poll(batch_size=10_000) == []
    assert time.monotonic() - start < 1


@needs("fifo")
def test_the_first_pushed_is_the_first_claimed(queues: Queues) -> None:
    q = queues.open()
    ids = [q.push({"n": n}) for n in range(30)]
    held = q.poll(batch_size=10)
    assert [task.id for task in held] == ids[:10]
    ids += q.push_many({"n": n} for n in range(5))
    held += [claim(q) for _ in range(25)]
    assert [task.id for task in held] == ids


@needs("fifo")
def test_the_order_is_that_of_pushing_and_not_of_the_ids(queues: Queues) -> None:
    q = queues.open()
    ids = ["z", "a", "m", "0"]
    for task_id in ids:
        q.push({}, id=task_id)
        time.sleep(0.03)  # a file's time moves in steps of some milliseconds
    assert [task.id for task in q.poll(batch_size=10)] == ids


@needs("strict_fifo")
def test_the_order_holds_at_the_same_moment_and_among_thousands(queues: Queues) -> None:
    q = queues.open()
    ids = q.push_many(Push({}, id=str(n)) for n in range(3000, 0, -1))
    held = q.poll(batch_size=10) + q.poll(batch_size=5000)
    assert [task.id for task in held] == ids


@needs("priorities")
def test_a_higher_priority_goes_first(queues: Queues) -> None:
    q = queues.open()
    for priority in (0, 9, 5, 3, 9):
        q.push({"n": priority}, priority=priority)
    q.push({"n": "default"})
    first = q.poll(batch_size=3)
    assert [task.priority for task in first] == [9, 9, 5]
    q.push({"n": 8}, priority=8)
    assert [task.priority for task in q.poll(batch_size=10)] == [8, 5, 3, 0]


def test_a_batch_is_no_larger_than_asked_and_no_task_is_in_two(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    ids = q.push_many({"n": n} for n in range(25))
    batches = [queue.poll(batch_size=10) for queue in (q, other, q)]
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert sorted(task.id for batch in batches for task in batch) == sorted(ids)
    assert other.poll() == []


@pytest.mark.parametrize("batch_size", [0, -1, 10_001, 1.0, True, "1", None])
def test_a_wrong_batch_size_is_refused(queues: Queues, batch_size: Any) -> None:
    with pytest.raises(dfq.ConfigError, match=r"batch_size.*10,000"):
        queues.open().poll(batch_size)


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf, "1", True, None])
def test_a_wrong_wait_is_refused(queues: Queues, wait: Any) -> None:
    with pytest.raises(dfq.ConfigError, match="wait"):
        queues.open().poll(wait=wait)


@pytest.mark.parametrize("lease", [0, -1, 0.01, math.nan, math.inf, 31 * 86400, "1", True])
def test_a_wrong_lease_is_refused(queues: Queues, lease: Any) -> None:
    q = queues.open()
    q.push({})
    with pytest.raises(dfq.ConfigError, match="lease"):
        q.poll(lease=lease)
    task = claim(q)
    with pytest.raises(dfq.ConfigError, match="extend"):
        q.heartbeat(task, extend=lease)
    q.ack(task)


def test_a_claimed_task_knows_itself(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 1}, id="t", priority=7)
    task = claim(q)
    assert (task.id, task.payload, task.attempt, task.priority, task.lost) == ("t", {"n": 1}, 1, 7, False)
    assert task.token >= 1
    assert task.created_at.endswith("Z")
    assert "'t'" in repr(task)


@needs("delays")
def test_a_delayed_task_is_scheduled_and_then_comes(queues: Queues) -> None:
    q = queues.open()
    pushed = time.monotonic()
    q.push({"n": 1}, id="t", delay=0.25)
    assert q.poll() == []
    assert q.counts() == dfq.Counts(scheduled=1)
    info = q.get("t")
    assert info.state == "scheduled"
    assert info.due_at is not None
    assert info.payload == {"n": 1}
    task = claim(q)
    assert time.monotonic() - pushed >= 0.25
    assert (task.id, task.payload, task.attempt) == ("t", {"n": 1}, 1)
    q.ack(task)
    assert q.counts() == dfq.Counts(completed=1)


@needs("delays")
def test_push_many_delays_each_as_it_says(queues: Queues) -> None:
    q = queues.open()
    q.push_many([Push({"n": 1}, id="now"), Push({"n": 2}, id="later", delay=60)])
    q.push_many([{"n": 3}], delay=60)
    held = q.poll(batch_size=10)
    assert [task.id for task in held] == ["now"]
    assert q.counts() == dfq.Counts(leased=1, scheduled=2)


@needs("delays", "priorities")
def test_a_delayed_task_keeps_its_priority(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": "late"}, priority=9, delay=0.1)
    q.push({"n": "low"}, priority=1)
    time.sleep(0.2)
    assert [task.payload["n"] for task in (claim(q), claim(q))] == ["late", "low"]


def test_wait_ends_with_a_push_from_another_thread(queues: Queues) -> None:
    q, pusher = queues.open(), queues.open()
    thread = threading.Timer(0.1, lambda: pusher.push({"n": 1}, id="t"))
    start = time.monotonic()
    thread.start()
    tasks = q.poll(wait=20)
    waited = time.monotonic() - start
    thread.join()
    assert [task.id for task in tasks] == ["t"]
    assert 0.05 < waited < 5


def test_wait_ends_with_a_push_through_the_same_object(queues: Queues) -> None:
    q = queues.open()
    thread = threading.Timer(0.1, lambda: q.push({"n": 1}))
    start = time.monotonic()
    thread.start()
    assert len(q.poll(wait=20)) == 1
    thread.join()
    assert time.monotonic() - start < 5


def test_wait_ends_when_a_task_is_given_back(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    q.push({"n": 1}, id="t")
    task = claim(q)
    thread = threading.Timer(0.1, lambda: q.nack(task, error="no"))
    start = time.monotonic()
    thread.start()
    assert claim(other, wait=20).attempt == 2
    thread.join()
    assert time.monotonic() - start < 5


def test_wait_is_over_after_its_time(queues: Queues) -> None:
    q = queues.open()
    start = time.monotonic()
    assert q.poll(wait=0.2) == []
    assert 0.15 < time.monotonic() - start < 2


def test_an_interrupt_ends_a_waiting_poll_and_sticks(queues: Queues) -> None:
    q = queues.open()
    thread = threading.Timer(0.1, q.interrupt)
    start = time.monotonic()
    thread.start()
    assert q.poll(wait=30) == []
    thread.join()
    assert q.poll(wait=30) == []
    assert time.monotonic() - start < 5
    q.push({"n": 1})
    assert len(q.poll(wait=30)) == 1


def test_an_interrupt_is_for_one_object_only(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    q.interrupt()
    start = time.monotonic()
    assert other.poll(wait=0.2) == []
    assert time.monotonic() - start >= 0.15


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    assert not q.paused
    q.push({"n": 1}, id="held")
    held = claim(q)
    q.pause()
    q.pause()
    assert q.paused
    assert other.paused
    q.push({"n": 2}, id="new")
    assert q.poll() == []
    assert other.poll(wait=0.1) == []
    q.heartbeat(held)
    q.ack(held)
    other.resume()
    other.resume()
    assert not q.paused
    assert claim(q).id == "new"


def test_a_waiting_poll_goes_on_when_the_queue_is_resumed(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    q.push({"n": 1})
    q.pause()
    thread = threading.Timer(0.1, other.resume)
    start = time.monotonic()
    thread.start()
    assert len(q.poll(wait=20)) == 1
    thread.join()
    assert time.monotonic() - start < 5


def test_many_threads_share_out_the_tasks_and_each_is_completed_once(queues: Queues) -> None:
    shared, own = queues.open(), [queues.open() for _ in range(2)]
    ids = shared.push_many({"n": n} for n in range(120))
    done: list[str] = []
    failures: list[BaseException] = []

    def work(q: dfq.QueueManager) -> None:
        try:
            while len(done) < len(ids):
                for task in q.poll(batch_size=3, wait=0.05):
                    q.ack(task)
                    done.append(task.id)
        except BaseException as e:
            failures.append(e)
            raise

    threads = [threading.Thread(target=work, args=(q,)) for q in [shared] * 3 + own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sorted(done) == sorted(ids)
    assert shared.counts() == dfq.Counts(completed=120)


def test_many_threads_push_one_id_and_one_of_them_wins(queues: Queues) -> None:
    q = queues.open()
    start = threading.Barrier(8)
    answers: list[str] = []

    def push(n: int) -> None:
        start.wait()
        try:
            answers.append(q.push({"n": n}, id="same"))
        except dfq.TaskExists:
            answers.append("exists")

    threads = [threading.Thread(target=push, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["exists"] * 7 + ["same"]
    assert q.counts().pending == 1
