"""Checks on who survives whom: run on the real sources, and on mutants that must turn them red."""

from __future__ import annotations

import os
import signal
import time

from worker_handlers import KIN
from worker_kit import Lab, alive, eventually, template_of

HOLD = ["sh", "-c", 'echo $$ > "$0/.x"; mv "$0/.x" "$0/child"; exec sleep 300']


def gone(*pids: int) -> None:
    for pid in pids:
        eventually(lambda pid=pid: not alive(pid), 10, f"process {pid} ends")


def family_of(lab: Lab) -> list[int]:
    """Return the child and the processes that it started: in its group, in a session of its own, forked without
    starting a program, and without an environment."""
    return [lab.noted(name) for name in KIN]


def nothing_ran_beside_the_retry(lab: Lab, but: str = "") -> None:
    assert (lab.notes / "beside").read_text() == but, "ran beside the retry"


def is_finished_by_another_worker(lab: Lab) -> None:
    begun = time.monotonic()
    report = lab.report(lab.start("family", drain=True))
    assert report["done"] == 1
    assert lab.state() == "completed"
    assert time.monotonic() - begun < 60  # not by waiting for a lease of 900 s to run out


def check_killed_supervisor(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("family")
    family, template = family_of(lab), template_of(supervisor)
    supervisor.kill()
    is_finished_by_another_worker(lab)
    nothing_ran_beside_the_retry(lab)
    gone(*family, template)


def check_killed_supervisor_of_a_command(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start(command=[*HOLD, str(lab.notes)])
    command = lab.noted("child")
    supervisor.kill()
    gone(command)
    is_finished_by_another_worker(lab)


def check_killed_template(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("family", drain=True)
    *family, bare = family_of(lab)
    os.kill(template_of(supervisor), signal.SIGKILL)
    assert lab.report(supervisor) == {"done": 1, "failed": 1}
    # Nothing but its descent told whose `bare` is, and only the template knew that.
    nothing_ran_beside_the_retry(lab, but="bare")
    gone(*family)
    assert alive(bare)


def check_killed_child(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("family", drain=True)
    child, *left = family_of(lab)
    os.kill(child, signal.SIGKILL)
    assert lab.report(supervisor) == {"done": 1, "failed": 1}
    nothing_ran_beside_the_retry(lab)
    gone(*left)


def check_time_out(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("family", drain=True, timeout=5.0)
    family = family_of(lab)
    assert lab.report(supervisor) == {"done": 1, "failed": 1}
    nothing_ran_beside_the_retry(lab)
    gone(*family)


def check_no_takeover_while_the_child_runs(lab: Lab) -> None:
    """The supervisor dies and the guardian is asleep: the child runs on, so nobody else may start the task."""
    lab.push()
    supervisor = lab.start("wait_for_go")
    child, template = lab.noted("child"), template_of(supervisor)
    os.kill(template, signal.SIGSTOP)
    try:
        supervisor.kill()
        supervisor.wait()
        with lab.queue() as queue:
            assert alive(child)
            assert queue.poll(wait=1.5) == [], "taken over"
    finally:
        os.kill(template, signal.SIGCONT)
    gone(child)
    with lab.queue() as queue:
        assert [task.id for task in queue.poll(wait=5)] == ["a"]


def check_killed_supervisor_and_template(lab: Lab) -> None:
    """With nobody left to guard, the kernel ends the child and the command."""
    lab.push()
    supervisor = lab.start(command=[*HOLD, str(lab.notes)])
    command, template = lab.noted("child"), template_of(supervisor)
    os.kill(template, signal.SIGSTOP)
    supervisor.kill()
    os.kill(template, signal.SIGKILL)
    gone(command)
    is_finished_by_another_worker(lab)
