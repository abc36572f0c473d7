"""Whichever process is killed, nothing is lost and nothing goes on unowned."""

from __future__ import annotations

import os
import signal

import pytest
import worker_checks
from worker_checks import HOLD, family_of, gone
from worker_kit import Lab, alive, eventually, running, template_of, templates

from dfq.config import Backoff
from dfq.worker import Worker, WorkOptions

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
    family = family_of(lab)
    with lab.queue() as queue:
        queue.cancel("a")
    gone(*family)
    assert lab.report(supervisor) == {"lost": 1}


def test_the_first_signal_lets_the_task_finish_and_claims_no_more(lab: Lab) -> None:
    lab.push("a")
    supervisor = lab.start("wait_for_go")
    lab.noted("child")
    lab.push("b")
    supervisor.send_signal(signal.SIGTERM)
    eventually(lambda: "may finish" in lab.stderr(supervisor))
    (lab.notes / "go").touch()
    assert lab.report(supervisor) == {"done": 1}
    assert (lab.state("a"), lab.state("b")) == ("completed", "pending")


def test_an_idle_worker_stops_at_once(lab: Lab) -> None:
    supervisor = lab.start("pid")
    eventually(lambda: supervisor.poll() is None and _is_up(supervisor.pid), what="the worker is up")
    supervisor.send_signal(signal.SIGINT)
    assert sum(lab.report(supervisor, 30).values()) == 0  # far less than a poll waits


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_second_signal_gives_the_task_back_uncounted(lab: Lab, number: signal.Signals) -> None:
    lab.push()
    supervisor = lab.start("family")
    family = family_of(lab)
    supervisor.send_signal(number)
    eventually(lambda: "may finish" in lab.stderr(supervisor))
    assert all(alive(pid) for pid in family)
    supervisor.send_signal(number)
    assert lab.report(supervisor) == {"released": 1}
    gone(*family)
    with lab.queue() as queue:
        assert (queue.get("a").state, queue.get("a").attempt) == ("pending", 0)


def test_a_stop_that_hits_every_process_of_the_service_costs_no_attempt(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("family")
    child, template = lab.noted("child"), template_of(supervisor)
    for pid in (child, template, supervisor.pid):
        os.kill(pid, signal.SIGTERM)
    assert lab.report(supervisor) == {"released": 1}


def test_a_task_that_kills_the_template_is_retried_with_a_new_one(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("kill_template", drain=True)
    assert lab.report(supervisor) == {"done": 1, "failed": 1}


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


def test_a_worker_under_nohup_is_not_stopped_by_a_hangup(lab: Lab) -> None:
    was = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        supervisor = lab.start("pid")
    finally:
        signal.signal(signal.SIGHUP, was)
    eventually(lambda: _is_up(supervisor.pid))
    supervisor.send_signal(signal.SIGHUP)
    lab.push()
    eventually(lambda: lab.state() == "completed")
    supervisor.send_signal(signal.SIGTERM)
    assert lab.report(supervisor) == {"done": 1}


def test_a_template_that_does_not_react_is_replaced(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfq.work.crew.HELLO", 1.0)
    monkeypatch.setattr("dfq.work.crew.EXIT", 1.0)
    lab.push()
    with lab.queue() as queue:
        options = WorkOptions(drain=True, timeout=5.0)
        quick = Backoff(first=0.05, factor=1, cap=0.05, jitter=0)
        worker = Worker(queue, handler="worker_handlers:family", options=options, backoff=quick)
        with running(worker) as reports:
            family = family_of(lab)
            [template] = templates(os.getpid())
            os.kill(template, signal.SIGSTOP)
            eventually(lambda: reports, 60, "the worker is done")
        assert reports[0].done == 1
        assert reports[0].failed == 1
        gone(*family, template)


STUBBORN = """
import threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
def run(task): pass
"""
SLOW = """
import os, pathlib, time
pathlib.Path(os.environ["NOTE"]).touch()
time.sleep(300)
"""


def test_a_template_does_not_outlive_its_supervisor(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with a thread of the handler's module that goes on, and not in the middle of an import."""
    imported = lab.root / "imported"
    monkeypatch.setenv("NOTE", str(imported))
    (lab.root / "stubborn.py").write_text(STUBBORN)
    (lab.root / "slow.py").write_text(SLOW)
    with_thread, importing = lab.start("stubborn:run"), lab.start("slow:run")
    eventually(lambda: _is_up(with_thread.pid) and imported.exists(), what="both have begun")
    for supervisor in (with_thread, importing):
        template = template_of(supervisor)
        supervisor.kill()
        gone(template)


def test_what_a_module_starts_when_it_is_imported_ends_with_the_worker(lab: Lab) -> None:
    note = lab.notes / "helper"
    (lab.root / "helped.py").write_text(
        "import subprocess\n"
        "helper = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(helper.pid))\n"
        "def run(task): return helper.poll()\n"
    )
    lab.push()
    assert lab.report(lab.start("helped:run", drain=True, max_tasks=1)) == {"done": 1}
    gone(lab.noted("helper"))


def _is_up(pid: int) -> bool:
    """Tell whether a worker has its template and waits for tasks."""
    threads = list(os.scandir(f"/proc/{pid}/task"))
    return bool(templates(pid)) and len(threads) >= 4
