"""What looking and acting promise: counts, tasks, get, cancel, purge."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from backends import Queues, claim, needs

import dfq
from dfq.queue import STATES, Push


def one_in_each_state(queues: Queues) -> tuple[dfq.QueueManager, list[dfq.Task]]:
    q = queues.open(max_attempts=1)
    held = []
    for state in ("completed", "failed", "leased"):
        q.push({"is": state}, id=state)
        held.append(claim(q))
    q.ack(held[0], result={"ok": 1})
    q.nack(held[1], error="no")
    q.push({"is": "pending"}, id="pending")
    q.push({"is": "scheduled"}, id="scheduled", delay=60)
    return q, held[2:]


@needs("exact_counts", "delays")
def test_counts_know_every_state(queues: Queues) -> None:
    q, held = one_in_each_state(queues)
    assert q.counts() == dfq.Counts(pending=1, leased=1, scheduled=1, completed=1, failed=1)
    assert queues.open().counts() == q.counts()
    assert held


def test_a_new_queue_counts_nothing(queues: Queues) -> None:
    q = queues.open()
    assert q.counts() == dfq.Counts()
    assert list(q.tasks()) == []


@needs("listing", "delays")
def test_tasks_lists_each_state(queues: Queues) -> None:
    q, held = one_in_each_state(queues)
    for state in STATES:
        [info] = q.tasks(state)
        assert (info.id, info.state) == (state, state)
        assert info == q.get(state) or state == "leased"
        if state != "completed":
            assert info.payload == {"is": state}
            assert info.priority == 5
    assert sorted(info.id for info in q.tasks()) == sorted(STATES)
    leased = q.get("leased")
    assert leased.attempt == 1
    assert leased.token == held[0].token
    assert leased.worker_id
    assert leased.claimed_at is not None
    assert q.get("scheduled").due_at is not None
    assert q.get("completed").result == {"ok": 1}
    assert q.get("failed").error == "no"


@needs("listing", "delays")
def test_states_tell_every_id_once(queues: Queues) -> None:
    q, held = one_in_each_state(queues)
    q.push({}, id="cancelled")
    q.cancel("cancelled")
    assert sorted((t.id, t.state, t.stalled) for t in q.states()) == sorted((state, state, False) for state in STATES)
    assert [t.id for t in q.states("sched")] == ["scheduled"]
    assert list(q.states("pending/")) == []
    assert sorted(dfq.QueueManager.states(q, "")) == sorted(q.states()), "what a provider gets that has no quicker way"
    assert held


@needs("listing")
def test_states_tell_ids_as_they_are(queues: Queues) -> None:
    q = queues.open()
    ids = ["29.5/-98.5/dentist.csv", "-/.", "24/7 plumber%2F~2", "é\n🦉", "long/" * 700 + "é", "long/" * 700 + "e"]
    q.push_many(Push({}, id=i) for i in ids)
    q.ack_many(q.poll(batch_size=3))
    assert sorted(t.id for t in q.states()) == sorted(ids)
    assert sorted(t.id for t in q.states("long/")) == sorted(ids[4:])
    assert [t.id for t in q.states(ids[4])] == [ids[4]]
    assert sum(t.state == "completed" for t in q.states()) == 3


@needs("listing")
def test_a_lease_that_is_alive_is_not_stalled(queues: Queues) -> None:
    q = queues.open(lease=60)
    q.push({}, id="t")
    task = claim(q)
    q.heartbeat(task, extend=30)
    [info] = queues.open().tasks("leased")
    assert (info.stalled, info.silent_since, info.outlook) == (None, None, None)
    assert info.host == os.uname().nodename
    assert [t.stalled for t in q.states()] == [False]
    q.ack(task)
    assert q.get("t").stalled is None


@needs("listing")
def test_a_lease_that_nobody_renews_is_stalled_before_it_is_over(queues: Queues) -> None:
    for lease in (1, 2, 4):  # a provider may end a lease the moment it is over, and we may miss the moment before
        q = queues.open(f"q{lease}", lease=lease, auto_heartbeat=False)
        q.push({}, id="t")
        task = claim(q)
        while (info := q.get("t")).state == "leased" and info.stalled is None:
            time.sleep(0.01)
        if info.state == "leased":
            break
    assert info.state == "leased"
    assert info.stalled in ("no heartbeat", "expired")
    assert info.silent_since is not None
    assert info.silent_since >= str(info.claimed_at)[:19]
    assert info.outlook
    assert task.id == "t"


@needs("listing", "cross_process")
def test_paths_are_whole(queues: Queues) -> None:
    q, held = one_in_each_state(queues)
    for info in [*q.tasks(), *(q.get(state) for state in STATES)]:
        assert info.path is not None
        assert Path(info.path).is_file()
        assert Path(info.path).is_relative_to(queues.root)
    assert held


@needs("listing")
def test_tasks_lists_no_more_than_asked(queues: Queues) -> None:
    q = queues.open()
    q.push_many({"n": n} for n in range(10))
    assert len(list(q.tasks("pending", limit=3))) == 3
    assert len(list(q.tasks(limit=3))) == 3
    assert len(list(q.tasks("pending", limit=100))) == 10
    assert list(q.tasks("pending", limit=0)) == []


@needs("listing")
def test_a_wrong_state_or_limit_is_refused(queues: Queues) -> None:
    q = queues.open()
    with pytest.raises(dfq.ConfigError, match="pending, leased, scheduled, completed, failed"):
        list(q.tasks("done"))  # type: ignore[arg-type]
    for limit in (-1, 1.5, True, "3"):
        with pytest.raises(dfq.ConfigError, match="limit"):
            list(q.tasks(limit=limit))  # type: ignore[arg-type]


@needs("listing")
def test_looking_gives_no_right_and_takes_none(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    q.get("t")
    list(q.tasks())
    task = claim(q)
    q.get("t")
    list(q.tasks())
    assert not task.lost
    q.ack(task)


@needs("listing")
def test_a_task_that_is_not_there_is_not_found(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="a")
    for missing in ("b", "a/b", "../a", "x" * 4000):
        with pytest.raises(dfq.TaskNotFound):
            q.get(missing)


def test_a_cancelled_task_is_not_handed_out_and_not_counted(queues: Queues) -> None:
    q = queues.open()
    q.push_many([{"n": 1}])
    q.push({"n": 2}, id="t")
    assert q.cancel("t") == ["t"]
    assert q.counts() == dfq.Counts(pending=1)
    assert len(q.poll(batch_size=10)) == 1
    assert list(q.tasks("completed")) == []
    assert q.get("t").cancelled


@pytest.mark.parametrize("if_exists", ["error", "skip", "rerun"])
def test_a_cancelled_id_can_be_pushed_again_at_once(queues: Queues, if_exists: dfq.queue.IfExists) -> None:
    q, other = queues.open(), queues.open()
    q.push({"n": 1}, id="t")
    late = claim(other)
    q.cancel("t")
    assert q.push({"n": 2}, id="t", if_exists=if_exists) == "t"
    assert q.counts() == dfq.Counts(pending=1)
    with pytest.raises(dfq.LeaseLost):
        other.ack(late)
    task = claim(q)
    assert (task.payload, task.attempt) == ({"n": 2}, 1)
    assert task.token > late.token
    q.ack(task)
    assert q.counts() == dfq.Counts(completed=1)
    assert not q.get("t").cancelled


def test_a_task_cancelled_under_its_worker_is_lost(queues: Queues) -> None:
    q, other = queues.open(), queues.open()
    q.push({}, id="t")
    task = claim(q)
    assert other.cancel(["t"]) == ["t"]
    with pytest.raises(dfq.LeaseLost):
        q.heartbeat(task)
    assert task.lost
    with pytest.raises(dfq.LeaseLost):
        q.nack(task)
    with pytest.raises(dfq.LeaseLost):
        q.ack(task, result=1)
    assert q.counts() == dfq.Counts()
    assert q.poll() == []


def test_an_ack_alone_finds_out_that_the_task_was_cancelled(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    task = claim(q)
    q.cancel("t")
    with pytest.raises(dfq.LeaseLost):
        q.ack(task, result=1)
    assert task.lost
    assert q.get("t").cancelled
    assert q.get("t").result is None


@needs("delays", "dead_letters")
def test_scheduled_and_failed_tasks_can_be_cancelled(queues: Queues) -> None:
    q, held = one_in_each_state(queues)
    assert sorted(q.cancel(["scheduled", "failed"])) == ["failed", "scheduled"]
    assert q.counts() == dfq.Counts(pending=1, leased=1, completed=1)
    with pytest.raises(dfq.TaskNotFound):
        q.retry("failed")
    q.ack_many(held)


def test_what_is_over_or_unknown_cannot_be_cancelled(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    with pytest.raises(dfq.TaskNotFound):
        q.cancel("nobody")
    q.ack(claim(q), result=1)
    with pytest.raises(dfq.TaskNotFound):
        q.cancel("t")
    assert q.get("t").result == 1
    assert q.cancel([]) == []


def test_ids_that_are_no_text_are_refused(queues: Queues) -> None:
    q = queues.open()
    for wrong in (5, b"t", [5], 1.5):
        for act in (q.cancel, q.retry):
            with pytest.raises(dfq.InvalidTask, match="a task id is text, not"):
                act(wrong)  # type: ignore[arg-type]


@needs("delays")
def test_purge_cancels_all_that_is_not_completed(queues: Queues) -> None:
    q, [held] = one_in_each_state(queues)
    assert q.purge() == 4
    assert q.counts() == dfq.Counts(completed=1)
    with pytest.raises(dfq.LeaseLost):
        q.ack(held)
    assert q.poll() == []
    assert q.purge() == 0
    assert q.get("completed").result == {"ok": 1}
    q.push({}, id="new")
    assert claim(q).id == "new"
