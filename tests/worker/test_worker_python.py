"""Python handlers: what they get, and what becomes of what they return or raise."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from worker_kit import Lab

from dfq.config import Backoff
from dfq.errors import ConfigError
from dfq.queue import TaskInfo
from dfq.work.drain import GIVE_BACKS
from dfq.worker import Worker, WorkOptions, WorkReport

QUICK = Backoff(first=0.01, factor=1, cap=0.01, jitter=0)


def run(
    lab: Lab, handler: str, payload: Any = "x", backoff: Backoff = QUICK, **options: Any
) -> tuple[WorkReport, TaskInfo]:
    with lab.queue(max_attempts=3) as queue:
        queue.push(payload, id="a")
        worker = Worker(
            queue,
            handler=f"worker_handlers:{handler}",
            options=WorkOptions(**(options or {"once": True})),
            backoff=backoff,
        )
        return worker.run(), queue.get("a")


def test_a_handler_gets_the_task_and_its_return_value_is_the_result(lab: Lab) -> None:
    report, task = run(lab, "echo", {"n": [1, None, "é"]})
    assert report == WorkReport(done=1)
    assert task.result == {
        "id": "a",
        "attempt": 1,
        "token": task.token,
        "created_at": task.created_at,
        "text": {"n": [1, None, "é"]},
    }


def test_bytes_go_in_and_come_out_as_bytes(lab: Lab) -> None:
    assert run(lab, "blob", b"\x80")[1].result == b"\xff\x00\x80"


def test_async_handlers_share_one_loop(lab: Lab) -> None:
    with lab.queue() as queue:
        ids = queue.push_many(["x"] * 3)
        Worker(queue, handler="worker_handlers:async_echo", options=WorkOptions(drain=True)).run()
        results = [queue.get(id).result for id in ids]
    assert sorted(results) == [["x", 1, 1], ["x", 1, 2], ["x", 1, 3]]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("raise_long", ["the very end"]),
        ("async_raise", ["Traceback", "LookupError: async trouble"]),
        ("leave", ["SystemExit: 3"]),
        ("vanish", ["exit 0", "before the task was done"]),
        ("unusable", ["cannot be kept as a result", "JSON"]),
        ("huge", ["300,000 bytes", "the limit is 262,144"]),
        ("segfault", ["killed by SIGSEGV"]),
        ("locked", ["cannot be kept as a result", "TypeError", "lock"]),
        ("endless", ["cannot be kept as a result", "nested deeper"]),
        ("fickle", ["cannot be kept as a result", "no more looks"]),
        ("mute", ["Traceback", "Mute"]),
    ],
)
def test_whatever_goes_wrong_costs_one_attempt_and_says_why(lab: Lab, handler: str, words: list[str]) -> None:
    report, task = run(lab, handler)
    assert report == WorkReport(failed=1)
    assert (task.state in ("pending", "scheduled"), task.attempt) == (True, 1)
    assert task.error is not None
    assert all(word in task.error for word in words), task.error
    assert len(task.error) <= 2100


def test_a_child_goes_on_after_an_exception(lab: Lab) -> None:
    report, _ = run(lab, "async_raise", drain=True)
    assert report == WorkReport(failed=3, dead=1)


def test_a_task_that_kills_its_worker_each_time_ends_as_a_dead_letter(lab: Lab) -> None:
    report, task = run(lab, "kill_self", drain=True)
    assert report == WorkReport(failed=3, dead=1)
    assert task.state == "failed"
    assert [e["error"] for e in task.errors] == ["killed by SIGKILL"] * 3


@pytest.mark.parametrize("delay", [0.2, "nonsense", 1e10, "inf", "nan", True, -1])
def test_retry_later_gives_back_without_counting(lab: Lab, delay: Any) -> None:
    report, task = run(lab, "later", {"delay": delay})
    assert report == WorkReport(released=1)
    assert task.attempt == 0


def test_a_retry_later_that_is_made_carelessly_still_means_what_it_says(lab: Lab) -> None:
    report, task = run(lab, "later_hastily")
    assert report == WorkReport(released=1)
    assert task.attempt == 0


def test_a_handler_that_leaves_something_odd_as_stdout_harms_nobody(lab: Lab) -> None:
    with lab.queue() as queue:
        queue.push_many([{"dir": str(lab.notes), "role": role} for role in ("sibling", "none", "object")])
        options = WorkOptions(workers=2, max_tasks=1, drain=True)
        assert Worker(queue, handler="worker_handlers:siblings", options=options).run() == WorkReport(done=3)


def test_retry_later_waits_as_long_as_it_says_or_the_backoff(lab: Lab) -> None:
    slow = Backoff(first=300, cap=300, jitter=0)
    run(lab, "later_by_backoff", backoff=slow)
    with lab.queue() as queue:
        assert queue.poll() == []
        queue.cancel("a")
        queue.push({"delay": 0}, id="b")
        Worker(queue, handler="worker_handlers:later", options=WorkOptions(once=True), backoff=slow).run()
        assert [task.id for task in queue.poll(wait=2)] == ["b"]


def test_what_a_handler_prints_goes_to_stderr(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    run(lab, "shout")
    out, err = capfd.readouterr()
    assert out == ""
    assert "to stdout" in err
    assert "to stderr" in err


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_failure_is_logged_with_what_was_said_on_one_line(
    lab: Lab, capfd: pytest.CaptureFixture[str], log_format: str
) -> None:
    run(lab, "complain", once=True, log_format=log_format)
    [line] = [line for line in capfd.readouterr().err.splitlines() if "attempt" in line]
    assert "ValueError: tile 7 is very very" in line
    assert len(line) < 400


def test_a_log_line_does_not_go_on_where_a_task_left_off(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    run(lab, "half_a_line", once=True, log_format="json")
    half, line = capfd.readouterr().err.splitlines()
    assert half == "half a line"
    assert json.loads(line)["outcome"] == "done"


def test_json_logs_are_one_object_a_line(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    run(lab, "segfault", once=True, log_format="json")
    [line] = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    assert line.pop("seconds") >= 0
    assert line.pop("time")
    assert line == {"slot": 1, "task": "a", "outcome": "failed", "attempt": 1, "note": "killed by SIGSEGV"}


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("worker_handlers:no_such", "no_such"),
        ("worker_handlers:not_a_function", "it is a int, not a function"),
        ("antigravity_of_none", "package.module:function"),
    ],
)
def test_a_handler_that_cannot_be_loaded_claims_nothing(lab: Lab, handler: str, reason: str) -> None:
    with lab.queue() as queue:
        queue.push("x", id="a")
        with pytest.raises(ConfigError) as e:
            Worker(queue, handler=handler, options=WorkOptions(once=True)).run()
        assert handler in str(e.value)
        assert reason in str(e.value)
        assert (queue.get("a").state, queue.get("a").attempt) == ("pending", 0)


def test_an_option_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"workers": 0}, {"timeout": -1.0}, {"log_format": "xml"}):
        with pytest.raises(ConfigError):
            WorkOptions(**wrong)  # type: ignore[arg-type]


def test_once_takes_one_task_and_does_not_wait_for_it(lab: Lab) -> None:
    with lab.queue() as queue:
        worker = Worker(queue, handler="worker_handlers:pid", options=WorkOptions(once=True, workers=3))
        begun = time.monotonic()
        assert worker.run() == WorkReport()
        assert time.monotonic() - begun < 30  # far less than a poll waits
        queue.push_many(["x", "y"])
        assert worker.run() == WorkReport(done=1)
        assert queue.counts().pending == 1


def test_drain_ends_with_the_queue_and_waits_for_retries_but_not_for_appointments(lab: Lab) -> None:
    half_a_second = Backoff(first=0.5, factor=1, cap=0.5, jitter=0)
    report, task = run(lab, "raise_long", backoff=half_a_second, drain=True, workers=2)
    assert (report.failed, task.state) == (3, "failed")
    with lab.queue() as queue:
        queue.push({"delay": 3600}, id="b")
        worker = Worker(queue, handler="worker_handlers:later", options=WorkOptions(drain=True))
        assert worker.run() == WorkReport(released=1)


def test_drain_waits_for_what_it_gave_back_but_not_for_ever(lab: Lab) -> None:
    with lab.queue() as queue:
        queue.push({"delay": 0}, id="stuck", priority=9)
        queue.push({"delay": 0.5, "times": 2, "dir": str(lab.notes)}, id="slow")
        handler, options = "worker_handlers:later_some_times", WorkOptions(drain=True)
        report = Worker(queue, handler=handler, options=options, backoff=Backoff(cap=1)).run()
        assert report == WorkReport(done=1, released=GIVE_BACKS + 2, stuck=1)
        assert queue.get("slow").state == "completed"
        assert (queue.get("stuck").state, queue.get("stuck").attempt) == ("scheduled", 0)


def test_a_child_is_replaced_after_max_tasks(lab: Lab) -> None:
    with lab.queue() as queue:
        ids = queue.push_many(["x"] * 6)
        options = WorkOptions(drain=True, max_tasks=2)
        assert Worker(queue, handler="worker_handlers:pid", options=options).run().done == 6
        pids = [queue.get(id).result for id in ids]
    assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2, 2]


def test_a_child_that_grew_over_max_rss_is_replaced_after_its_task(lab: Lab) -> None:
    for limit, children in ((60, 2), (4000, 1)):
        with lab.queue() as queue:
            ids = queue.push_many(["x"] * 2)
            options = WorkOptions(drain=True, max_rss=limit)
            assert Worker(queue, handler="worker_handlers:grow", options=options).run().done == 2
            assert len({queue.get(id).result for id in ids}) == children
