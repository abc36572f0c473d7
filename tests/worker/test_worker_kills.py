"""Whichever process is killed, nothing is lost and nothing goes on unowned."""

from __future__ import annotations

import os
import signal

import pytest
import worker_checks
from worker_checks import HOLD, gone
from worker_kit import Lab, alive, eventually, template_of

CHECKS = [getattr(worker_checks, name) for name in dir(worker_checks) if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nothing_is_lost_and_nothing_runs_unowned(check: object, lab: Lab) -> None:
    assert callable(check)
    check(lab)


def test_a_killed_command_costs_an_attempt(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start(command=[*HOLD, str(lab.notes)], once=True)
    os.kill(lab.noted("child"), signal.SIGKILL)
    assert lab.report(supervisor)["failed"] == 1


def test_a_lost_lease_ends_the_task_and_settles_nothing(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("family", once=True, lease=2.0)
    child, near, far = lab.noted("child"), lab.noted("near"), lab.noted("far")
    with lab.queue() as queue:
        queue.cancel("a")
    gone(child, near, far)
    assert lab.report(supervisor) == {"done": 0, "failed": 0, "released": 0, "lost": 1}


def test_the_first_signal_lets_the_task_finish_and_claims_no_more(lab: Lab) -> None:
    lab.push("a")
    supervisor = lab.start("wait_for_go")
    lab.noted("child")
    lab.push("b")
    supervisor.send_signal(signal.SIGTERM)
    eventually(lambda: "may finish" in lab.stderr(supervisor))
    (lab.notes / "go").touch()
    assert lab.report(supervisor) == {"done": 1, "failed": 0, "released": 0, "lost": 0}
    assert (lab.state("a"), lab.state("b")) == ("completed", "pending")


def test_an_idle_worker_stops_at_once(lab: Lab) -> None:
    supervisor = lab.start("pid")
    eventually(lambda: supervisor.poll() is None and _is_up(supervisor.pid), what="the worker is up")
    supervisor.send_signal(signal.SIGINT)
    assert sum(lab.report(supervisor, 5).values()) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_gives_the_task_back_uncounted(lab: Lab, number: signal.Signals) -> None:
    lab.push()
    supervisor = lab.start("family")
    child, near, far = lab.noted("child"), lab.noted("near"), lab.noted("far")
    supervisor.send_signal(number)
    eventually(lambda: "may finish" in lab.stderr(supervisor))
    assert alive(child)
    supervisor.send_signal(number)
    assert lab.report(supervisor) == {"done": 0, "failed": 0, "released": 1, "lost": 0}
    gone(child, near, far)
    with lab.queue() as queue:
        assert (queue.get("a").state, queue.get("a").attempt) == ("pending", 0)


def test_a_stop_that_hits_every_process_of_the_service_costs_no_attempt(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("family")
    child, template = lab.noted("child"), template_of(supervisor)
    for pid in (child, template, supervisor.pid):
        os.kill(pid, signal.SIGTERM)
    assert lab.report(supervisor) == {"done": 0, "failed": 0, "released": 1, "lost": 0}


def test_a_task_that_kills_the_template_is_retried_with_a_new_one(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("kill_template", drain=True)
    assert lab.report(supervisor) == {"done": 1, "failed": 1, "released": 0, "lost": 0}


def test_a_template_killed_while_idle_is_replaced_before_the_next_task(lab: Lab) -> None:
    supervisor = lab.start("pid")
    eventually(lambda: _is_up(supervisor.pid))
    os.kill(template_of(supervisor), signal.SIGKILL)
    lab.push()
    eventually(lambda: lab.state() == "completed")
    with lab.queue() as queue:
        assert queue.get("a").attempt == 1
    supervisor.send_signal(signal.SIGTERM)
    assert lab.report(supervisor)["done"] == 1


def _is_up(pid: int) -> bool:
    """Tell whether a worker has its template and waits for tasks."""
    import psutil

    names = [thread.name for thread in _threads(pid)]
    children = psutil.Process(pid).children()
    return bool(children) and len(names) >= 4


def _threads(pid: int) -> list[os.DirEntry[str]]:
    return list(os.scandir(f"/proc/{pid}/task"))
