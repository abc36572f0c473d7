"""What is promised about failing: attempts are counted, dead letters keep every error, a give-back is free."""

from __future__ import annotations

import time
from typing import Any

import pytest
from backends import Queues, claim, needs, until

import dfq


def test_a_nacked_task_comes_back_at_once_with_the_next_attempt(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 1}, id="t")
    q.nack(claim(q), error="HTTP 500")
    [task] = q.poll()
    assert (task.id, task.attempt, task.payload) == ("t", 2, {"n": 1})
    q.ack(task)
    assert q.counts() == dfq.Counts(completed=1)


@needs("delays")
def test_a_nack_may_say_when(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    start = time.monotonic()
    q.nack(claim(q), error="busy", delay=0.25)
    assert q.poll() == []
    counts = q.counts()
    assert (counts.leased, counts.pending + counts.scheduled) == (0, 1)
    assert claim(q).attempt == 2
    assert time.monotonic() - start >= 0.25


@needs("dead_letters")
def test_a_task_that_used_up_its_attempts_is_a_dead_letter_with_every_error(queues: Queues) -> None:
    q = queues.open(max_attempts=3)
    q.push({"n": 1}, id="a/b")
    for n in (1, 2, 3):
        task = claim(q)
        assert task.attempt == n
        q.nack(task, error=f"error {n} ünï")
    assert q.poll(wait=0.05) == []
    assert q.counts() == dfq.Counts(failed=1)
    [info] = q.tasks("failed")
    assert info == q.get("a/b")
    assert (info.id, info.state, info.payload, info.attempt) == ("a/b", "failed", {"n": 1}, 3)
    assert [error["error"] for error in info.errors] == [f"error {n} ünï" for n in (1, 2, 3)]
    assert [error["attempt"] for error in info.errors] == [1, 2, 3]
    assert all(error["worker_id"] and error["at"] for error in info.errors)


@needs("dead_letters")
def test_one_attempt_means_one(queues: Queues) -> None:
    q = queues.open(max_attempts=1)
    q.push({}, id="t")
    q.nack(claim(q))
    assert q.poll() == []
    assert q.counts() == dfq.Counts(failed=1)


@needs("dead_letters")
def test_a_lease_that_runs_out_counts_as_an_attempt(queues: Queues) -> None:
    q = queues.open(max_attempts=2, lease=0.1, auto_heartbeat=False)
    q.push({}, id="t")
    held = [claim(q), claim(q)]
    assert [task.attempt for task in held] == [1, 2]
    until(lambda: q.poll() == [] and q.counts().failed == 1)
    assert q.get("t").state == "failed"


@needs("dead_letters")
def test_a_retried_task_has_all_its_attempts_again(queues: Queues) -> None:
    q = queues.open(max_attempts=2)
    q.push({"n": 1}, id="t")
    first = claim(q)
    q.nack(first, error="one")
    q.nack(claim(q), error="two")
    assert q.retry("t") == ["t"]
    assert q.counts() == dfq.Counts(pending=1)
    third = claim(q)
    assert (third.attempt, third.payload) == (1, {"n": 1})
    assert third.token > first.token + 1
    q.nack(third, error="three")
    q.nack(claim(q), error="four")
    assert q.counts() == dfq.Counts(failed=1)
    assert [e["error"] for e in q.get("t").errors][-2:] == ["three", "four"]
    q.retry(["t"])
    q.ack(claim(q))
    assert q.counts() == dfq.Counts(completed=1)


@needs("dead_letters")
def test_retry_without_ids_takes_all_that_failed(queues: Queues) -> None:
    q = queues.open(max_attempts=1)
    assert q.retry() == []
    ids = q.push_many({"n": n} for n in range(4))
    tasks = q.poll(batch_size=4)
    for task in tasks[:3]:
        q.nack(task, error="no")
    assert sorted(q.retry()) == sorted(ids[:3])
    assert q.counts() == dfq.Counts(pending=3, leased=1)
    assert len(q.poll(batch_size=5)) == 3


@needs("dead_letters")
def test_only_a_failed_task_is_retried(queues: Queues) -> None:
    q = queues.open()
    q.push({}, id="t")
    for missing in ("t", "nobody", ["t", "nobody"]):
        with pytest.raises(dfq.TaskNotFound):
            q.retry(missing)
    task = claim(q)
    with pytest.raises(dfq.TaskNotFound):
        q.retry("t")
    q.ack(task)
    with pytest.raises(dfq.TaskNotFound):
        q.retry("t")
    assert q.retry([]) == []
    assert q.counts() == dfq.Counts(completed=1)


def test_a_give_back_is_not_counted(queues: Queues) -> None:
    q = queues.open(max_attempts=2)
    q.push({}, id="t")
    for _ in range(6):
        task = claim(q)
        assert task.attempt == 1
        q.nack(task, error="not now", count=False)
    q.nack(claim(q), error="really")
    task = claim(q)
    assert task.attempt == 2
    q.nack(task, count=False)
    task = claim(q)
    assert task.attempt == 2
    q.ack(task)
    assert q.counts() == dfq.Counts(completed=1)


@needs("dead_letters")
def test_a_give_back_of_the_only_attempt_does_not_bury(queues: Queues) -> None:
    q = queues.open(max_attempts=1)
    q.push({}, id="t")
    q.nack(claim(q), count=False)
    assert claim(q).attempt == 1


@pytest.mark.parametrize("error", ["x" * 100_000, "\ud800", "", "a\nb\0"], ids=["long", "surrogate", "empty", "nul"])
def test_an_error_may_be_any_text(queues: Queues, error: str) -> None:
    q = queues.open(max_attempts=1)
    q.push({}, id="t")
    q.nack(claim(q), error=error)
    if queues.can.dead_letters:
        [entry] = q.get("t").errors
        assert isinstance(entry["error"], str)
        q.retry("t")
        assert claim(q).attempt == 1


@pytest.mark.parametrize("error", [5, ValueError("x"), b"x"], ids=lambda e: type(e).__name__)
def test_an_error_that_is_no_text_is_refused(queues: Queues, error: Any) -> None:
    q = queues.open()
    q.push({}, id="t")
    task = claim(q)
    with pytest.raises(dfq.InvalidTask, match="error"):
        q.nack(task, error=error)
    q.ack(task)


def test_many_failures_are_kept_within_a_limit(queues: Queues) -> None:
    q = queues.open(max_attempts=130)
    q.push({}, id="t")
    for n in range(130):
        q.nack(claim(q), error=f"error {n}")
    errors = [error["error"] for error in q.get("t").errors]
    assert len(errors) == 100
    assert errors[-1] == "error 129"
