"""What a lease promises: it is one's own, it lives as long as it should, and it is never lost in silence."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from typing import Any

import pytest
from backends import Queues, claim, needs, run_elsewhere, steal, until

import dfq


def test_an_acked_task_is_completed_with_its_result(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 1}, id="t")
    q.ack(claim(q), result={"items": 20})
    assert q.counts() == dfq.Counts(completed=1)
    assert q.poll() == []
    info = q.get("t")
    assert (info.state, info.result, info.attempt, info.cancelled) == ("completed", {"items": 20}, 1, False)
    assert info.completed_at is not None
    assert info.worker_id


@pytest.mark.parametrize(
    "result", [None, {"a": 1}, [1, 2], "text", b"\xff\0", 3, 2.5, True], ids=lambda r: type(r).__name__
)
def test_a_result_comes_back_as_it_was(queues: Queues, result: Any) -> None:
    q = queues.open()
    q.push({}, id="t")
    q.ack(claim(q), result=result)
    assert q.get("t").result == result
    assert type(q.get("t").result) is type(result)


def test_a_result_that_cannot_be_kept_is_refused_and_the_task_is_still_ours(queues: Queues) -> None:
    q = queues.open(max_payload=1000)
    q.push({}, id="t")
    task = claim(q)
    with pytest.raises(dfq.PayloadTooLarge):
        q.ack(task, result="x" * 1001)
    with pytest.raises(dfq.InvalidTask):
        q.ack(task, result=object())
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(dfq.InvalidTask):
        q.ack(task, result=deep)
    assert q.counts() == dfq.Counts(leased=1)
    q.heartbeat(task)
    q.ack(task, result="x" * 1000)
    assert q.counts() == dfq.Counts(completed=1)


def test_a_task_is_acked_once(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    task = claim(q)
    q.ack(task, result=1)
    with pytest.raises(dfq.LeaseLost):
        q.ack(task, result=2)
    with pytest.raises(dfq.LeaseLost):
        q.nack(task)
    with pytest.raises(dfq.LeaseLost):
        q.heartbeat(task)
    assert q.get("t").result == 1
    assert q.counts() == dfq.Counts(completed=1)


def test_a_nacked_task_is_no_longer_ours(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    task = claim(q)
    q.nack(task)
    with pytest.raises(dfq.LeaseLost):
        q.ack(task)
    with pytest.raises(dfq.LeaseLost):
        q.nack(task)
    with pytest.raises(dfq.LeaseLost):
        q.heartbeat(task)
    assert claim(q).attempt == 2


def test_ack_many_completes_all(queues: Queues) -> None:
    q = queues.open()
    q.push_many({"n": n} for n in range(20))
    q.ack_many(q.poll(batch_size=20), result={"ok": True})
    q.ack_many([])
    assert q.counts() == dfq.Counts(completed=20)
    assert all(info.result == {"ok": True} for info in q.tasks("completed"))


def test_ack_many_completes_the_others_when_one_is_lost(queues: Queues) -> None:
    q = queues.open()
    q.push_many({"n": n} for n in range(5))
    tasks = q.poll(batch_size=5)
    q.cancel(tasks[2].id)
    with pytest.raises(dfq.LeaseLost, match=tasks[2].id):
        q.ack_many(tasks)
    assert q.counts() == dfq.Counts(completed=4)


def test_a_stolen_lease_cannot_be_acked(queues: Queues) -> None:
    loser, old, thief, new = steal(queues)
    with pytest.raises(dfq.LeaseLost, match="stolen"):
        loser.ack(old, result="late")
    assert old.lost
    assert not new.lost
    assert thief.counts() == dfq.Counts(leased=1)
    thief.ack(new, result="in time")
    assert thief.get("stolen").result == "in time"


def test_a_stolen_lease_cannot_be_nacked(queues: Queues) -> None:
    loser, old, thief, new = steal(queues)
    with pytest.raises(dfq.LeaseLost, match="stolen"):
        loser.nack(old, error="late")
    assert old.lost
    assert thief.counts() == dfq.Counts(leased=1)
    thief.ack(new)


def test_a_stolen_lease_cannot_be_renewed(queues: Queues) -> None:
    loser, old, thief, new = steal(queues)
    with pytest.raises(dfq.LeaseLost, match="stolen"):
        loser.heartbeat(old)
    assert old.lost
    thief.heartbeat(new)
    thief.ack(new)


def test_a_stolen_lease_cannot_be_acked_after_the_thief_is_done(queues: Queues) -> None:
    loser, old, thief, new = steal(queues)
    thief.ack(new, result="in time")
    with pytest.raises(dfq.LeaseLost):
        loser.ack(old, result="late")
    assert thief.get("stolen").result == "in time"
    assert thief.counts() == dfq.Counts(completed=1)


def test_losing_a_lease_does_not_give_back_the_thiefs(queues: Queues) -> None:
    loser, old, thief, new = steal(queues)
    loser.close()
    del old
    gc.collect()
    assert thief.poll(wait=0.1) == []
    thief.ack(new)


def test_the_token_grows_with_every_claim(queues: Queues) -> None:
    q = queues.open(max_attempts=2, lease=0.1, auto_heartbeat=False)
    q.push({}, id="t")
    held = [claim(q)]
    q.nack(held[-1])
    held.append(claim(q))
    q.nack(held[-1], count=False)
    held.append(claim(q))
    q.nack(held[-1])
    q.retry("t")
    held.append(claim(q))
    held.append(claim(q))  # the lease before it ran out
    tokens = [task.token for task in held]
    assert all(a < b for a, b in itertools.pairwise(tokens)), tokens
    q.ack(held[-1])


def test_a_lease_renews_itself_far_longer_than_it_lasts(queues: Queues) -> None:
    q, other = queues.open(lease=1.0), queues.open()  # on a busy machine a thread may not run for a good while
    q.push({}, id="t")
    task = claim(q)
    for _ in range(4):
        assert other.poll(wait=0.6) == []
    assert not task.lost
    q.ack(task)
    assert q.counts() == dfq.Counts(completed=1)


def test_a_whole_batch_renews_itself(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    q.push_many({"n": n} for n in range(10))
    tasks = q.poll(batch_size=10, lease=1.0)
    for _ in range(3):
        assert other.poll(wait=0.6) == []
    q.ack_many(tasks)


def test_without_auto_heartbeat_a_lease_ends_by_its_time(queues: Queues) -> None:
    q, other = queues.open(lease=0.1, auto_heartbeat=False), queues.open()
    q.push({}, id="t")
    task = claim(q)
    assert other.poll() == []
    again = claim(other)
    assert again.attempt == 2
    until(lambda: task.lost)
    other.ack(again)


def test_a_heartbeat_by_hand_keeps_a_lease(queues: Queues) -> None:
    q, other = queues.open(lease=0.3, auto_heartbeat=False), queues.open()
    q.push({}, id="t")
    task = claim(q)
    for _ in range(6):
        q.heartbeat(task)
        assert other.poll(wait=0.1) == []
    assert not task.lost
    q.ack(task)


def test_a_heartbeat_may_extend_a_lease_for_longer(queues: Queues) -> None:
    q, other = queues.open(lease=0.1, auto_heartbeat=False), queues.open()
    q.push({}, id="t")
    task = claim(q)
    q.heartbeat(task, extend=30)
    assert other.poll(wait=0.25) == []
    assert not task.lost
    q.ack(task)


def test_a_poll_may_ask_for_its_own_lease(queues: Queues) -> None:
    q, other = queues.open(lease=60, auto_heartbeat=False), queues.open()
    q.push({}, id="t")
    task = claim(q, lease=0.1)
    assert claim(other).id == "t"
    with pytest.raises(dfq.LeaseLost):
        q.ack(task)


@needs("forgets")
def test_a_forgotten_task_comes_back_long_before_its_lease_ends(queues: Queues) -> None:
    q, other = queues.open(lease=600), queues.open()
    q.push({"n": 1}, id="t")
    task = claim(q)
    assert other.poll() == []
    del task
    gc.collect()
    again = claim(other)
    assert (again.id, again.payload) == ("t", {"n": 1})
    other.ack(again)


@needs("forgets")
def test_a_forgotten_task_comes_back_to_the_one_who_forgot_it(queues: Queues) -> None:
    q = queues.open(lease=600)
    q.push({}, id="t")
    claim(q)
    gc.collect()
    q.ack(claim(q))


def test_a_kept_task_does_not_come_back(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    q.push({}, id="t")
    kept = q.poll()
    gc.collect()
    assert other.poll(wait=0.1) == []
    assert q.poll(wait=0.1) == []
    q.ack_many(kept)


def test_max_run_ends_a_lease_that_renews_itself(queues: Queues) -> None:
    q, other = queues.open(lease=0.1, max_run=0.2), queues.open()
    q.push({}, id="t")
    start = time.monotonic()
    task = claim(q)
    again = claim(other)
    assert time.monotonic() - start > 0.12
    until(lambda: task.lost)
    with pytest.raises(dfq.LeaseLost):
        q.ack(task)
    other.ack(again)


def test_close_gives_back_what_is_held_without_counting_it(queues: Queues) -> None:
    q, other = queues.open(lease=600), queues.open()
    q.push_many({"n": n} for n in range(3))
    tasks = q.poll(batch_size=3)
    q.close()
    q.close()
    again = other.poll(batch_size=3)
    assert [task.attempt for task in again] == [1, 1, 1]
    for task in tasks:
        with pytest.raises(dfq.LeaseLost):
            q.ack(task)
    other.ack_many(again)
    assert other.counts() == dfq.Counts(completed=3)


def test_leaving_a_with_block_closes(queues: Queues) -> None:
    other = queues.open()
    with queues.open(lease=600) as q:
        q.push({}, id="t")
        kept = claim(q)
    assert claim(other).attempt == 1
    assert kept.id == "t"


def test_close_ends_a_poll_that_waits_in_another_thread(queues: Queues) -> None:
    q = queues.open()
    answers: list[Any] = []

    def wait() -> None:
        try:
            answers.append(q.poll(wait=30))
        except dfq.QueueUnavailable:
            answers.append([])

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    q.close()
    thread.join(5)
    assert answers == [[]]


def test_a_closed_queue_says_so(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    q.close()
    for use in (
        lambda: q.push({}),
        lambda: q.push_many([{}]),
        q.poll,
        q.counts,
        q.tasks,
        lambda: q.get("t"),
        q.retry,
        lambda: q.retry("t"),
        lambda: q.cancel("t"),
        q.pause,
        q.resume,
        lambda: q.paused,
        q.purge,
    ):
        with pytest.raises(dfq.QueueUnavailable, match="queue 'q' is closed"):
            use()
    assert queues.open().counts() == dfq.Counts(pending=1)


@pytest.mark.parametrize("wrong", ["x", None, 5, object(), {"id": "t"}], ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_task_cannot_be_settled_or_renewed(queues: Queues, wrong: Any) -> None:
    q = queues.open()
    q.push({}, id="t")
    task = claim(q)
    for verb in ("ack", "nack", "heartbeat"):
        with pytest.raises(dfq.InvalidTask, match=rf"^{verb} takes a task from poll\(\), not "):
            getattr(q, verb)(wrong)
    with pytest.raises(dfq.InvalidTask, match=r"ack(_many)? takes"):
        q.ack_many(wrong)
    with pytest.raises(dfq.InvalidTask, match="for one, use ack"):
        q.ack_many(task)  # type: ignore[arg-type]
    q.ack_many([task])


def test_a_task_of_another_queue_is_refused(queues: Queues) -> None:
    q, other = queues.open("one"), queues.open("two")
    q.push({}, id="t")
    other.push({}, id="t")
    task = claim(q)
    for act in (other.ack, other.nack, other.heartbeat):
        with pytest.raises(dfq.QueueError):
            act(task)
    assert other.counts() == dfq.Counts(pending=1)
    q.ack(task)


@needs("cross_process")
def test_another_process_sees_the_same_tasks(queues: Queues) -> None:
    q = queues.open(lease=600)
    q.push({"n": 1}, id="held")
    held = claim(q)
    q.push({"n": 2}, id="free")
    run_elsewhere(queues, "[task] = q.poll(10)\nassert task.id == 'free'\nq.ack(task, result='there')")
    assert q.get("free").result == "there"
    q.ack(held)


@needs("cross_process")
def test_a_task_whose_process_dies_comes_back_long_before_its_lease_ends(queues: Queues) -> None:
    q = queues.open(lease=600)
    q.push({"n": 1}, id="t")
    run_elsewhere(queues, "tasks = q.poll()\nassert tasks\nimport os; os._exit(0)")
    task = claim(q)
    assert (task.id, task.attempt) == ("t", 2)
    q.ack(task)


@needs("receipts")
def test_a_receipt_lets_another_object_finish(queues: Queues) -> None:
    q, other = queues.open(lease=60, auto_heartbeat=False), queues.open(auto_heartbeat=False)
    q.push({"n": 1}, id="t")
    task = claim(q)
    taken = other.resume_lease(task.receipt)
    assert (taken.id, taken.token, taken.payload) == ("t", task.token, {"n": 1})
    other.heartbeat(taken)
    other.ack(taken, result="elsewhere")
    assert q.get("t").result == "elsewhere"


@needs("receipts")
def test_a_receipt_of_a_stolen_lease_is_lost(queues: Queues) -> None:
    _, old, thief, new = steal(queues)
    with pytest.raises(dfq.LeaseLost):
        thief.resume_lease(old.receipt)
    thief.ack(new)


@needs("receipts")
@pytest.mark.parametrize("receipt", ["", "x", "{}", "../../etc/passwd", "a" * 10_000, "\0"])
def test_a_receipt_that_is_none_is_refused(queues: Queues, receipt: str) -> None:
    with pytest.raises(dfq.QueueError):
        queues.open().resume_lease(receipt)


@needs("receipts")
def test_a_receipt_of_a_task_that_is_elsewhere_says_where_it_is_not(queues: Queues) -> None:
    q, other = queues.open(auto_heartbeat=False), queues.open("other", auto_heartbeat=False)
    q.push({}, id="a/b")
    task = claim(q)
    with pytest.raises(dfq.LeaseLost, match=rf"no task 'a/b' in queue 'other' at {queues.root}/other"):
        other.resume_lease(task.receipt)
    q.ack(task)
    with pytest.raises(dfq.LeaseLost, match="is over or was taken over"):
        q.resume_lease(task.receipt)


@needs("not_receipts")
def test_receipts_are_unsupported(queues: Queues) -> None:
    with pytest.raises(dfq.Unsupported):
        queues.open().resume_lease("x")
