"""A queue that cannot be reached, a handler that stops being importable, and long runs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from worker_kit import Lab, alive, eventually, running, template_of, templates

from dfq.errors import InvalidTask, QueueUnavailable
from dfq.queue import QueueManager
from dfq.work.log import Log
from dfq.work.signals import stop_signals
from dfq.worker import FIRST_PAUSE, Worker, WorkOptions, WorkReport


class ClosedStream:
    """What sys.stderr may turn into."""

    def write(self, text: str) -> None:
        raise RuntimeError("closed")


class Unreachable:
    """A queue that refuses the first calls of some verbs: what a real disk does not do on demand."""

    def __init__(self, queue: QueueManager, **refusals: int) -> None:
        self._queue = queue
        self._left = refusals

    def __getattr__(self, verb: str) -> Any:
        if self._left.get(verb, 0) > 0:
            self._left[verb] -= 1
            return self._refuse
        return getattr(self._queue, verb)

    @staticmethod
    def _refuse(*_: Any, **__: Any) -> None:
        raise QueueUnavailable("the disk is full")


@pytest.mark.parametrize("verb", ["poll", "ack"])
def test_a_queue_that_is_away_for_a_while_is_waited_for(lab: Lab, verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    with lab.queue() as queue:
        queue.push("x", id="a")
        away: Any = Unreachable(queue, **{verb: 2})
        worker = Worker(away, handler="worker_handlers:pid", options=WorkOptions(drain=True))
        assert worker.run() == WorkReport(done=1)
    assert capfd.readouterr().err.count("the disk is full") == 2


def test_an_ack_that_never_gets_through_ends_with_the_lease(lab: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    with lab.queue() as queue, lab.queue() as other:
        queue.push("x", id="a")
        away: Any = Unreachable(queue, ack=1_000_000)
        options = WorkOptions(once=True, lease=1.0)
        worker = Worker(away, handler="worker_handlers:pid", options=options)
        with running(worker) as reports:
            eventually(lambda: "cannot settle" in capfd.readouterr().err)
            other.cancel("a")
            eventually(lambda: reports)
        assert reports == [WorkReport(lost=1)]


class Picky:
    """A queue that does not take how a task failed: the first time, or whatever is said."""

    def __init__(self, queue: QueueManager, times: int) -> None:
        self._queue = queue
        self._times = times

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._queue, verb)

    def nack(self, *args: Any, **more: Any) -> None:
        self._times -= 1
        if self._times >= 0:
            raise InvalidTask("that makes no sense")
        self._queue.nack(*args, **more)


@pytest.mark.parametrize(("times", "report"), [(1, WorkReport(failed=1)), (9, WorkReport(lost=1))])
def test_a_task_that_cannot_be_settled_does_not_end_the_worker(lab: Lab, times: int, report: WorkReport) -> None:
    with lab.queue() as queue:
        queue.push("x", id="a")
        picky: Any = Picky(queue, times)
        assert Worker(picky, handler="worker_handlers:leave", options=WorkOptions(once=True)).run() == report
        if report.failed:
            assert "that makes no sense" in str(queue.get("a").error)


def test_a_time_out_for_sockets_that_a_handler_sets_ends_no_idle_child(lab: Lab) -> None:
    (lab.root / "hasty.py").write_text(
        "import os, socket\nsocket.setdefaulttimeout(0.1)\ndef run(task): return os.getpid()\n"
    )
    supervisor = lab.start("hasty:run")
    pids = []
    for task_id in ("a", "b"):
        lab.push(task_id)
        eventually(lambda task_id=task_id: lab.state(task_id) == "completed")
        with lab.queue() as queue:
            pids.append(queue.get(task_id).result)
        time.sleep(0.5)
    assert pids[0] == pids[1]
    supervisor.send_signal(signal.SIGTERM)
    assert lab.report(supervisor) == {"done": 2}


def test_a_log_that_nobody_reads_any_more_fails_no_task(lab: Lab) -> None:
    for task_id in ("a", "b"):
        lab.push(task_id)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        supervisor = lab.start("print_and_have_printed", stderr=writer, drain=True)
    finally:
        os.close(writer)
    out, _ = supervisor.communicate(timeout=60)
    assert json.loads(out)["done"] == 2
    assert json.loads(out)["failed"] == 0


@pytest.mark.parametrize("stream", [None, object(), ClosedStream()], ids=["none", "odd", "closed"])
def test_a_log_survives_what_it_writes_to(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    Log().event("nobody hears this")
    Log("json").task(1, "a", "done", 0.1, 1)


def test_a_stop_that_fails_does_not_make_us_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("this once")

    with stop_signals(stop):
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGHUP)
            eventually(lambda count=count: len(calls) == count)


def test_stop_works_from_another_thread(lab: Lab) -> None:
    with lab.queue() as queue:
        worker = Worker(queue, handler="worker_handlers:wait_for_go")
        with running(worker) as reports:
            queue.push({"dir": str(lab.notes)}, id="a")
            lab.noted("child")
            worker.stop()
            worker.stop()
            eventually(lambda: reports)
        assert reports == [WorkReport(released=1)]
        assert queue.get("a").attempt == 0


def test_a_handler_that_breaks_while_we_work_holds_no_tasks_and_does_not_spin(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = lab.root / "brittle.py"
    module.write_text("def run(task): return 1\n")
    monkeypatch.chdir(lab.root)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with lab.queue() as queue, running(Worker(queue, handler="brittle:run")):
        queue.push("x", id="a")
        eventually(lambda: queue.get("a").state == "completed")
        module.write_text("raise OSError('half written')\n")
        [template] = templates(os.getpid())
        children = psutil.Process(template).children()
        os.kill(template, signal.SIGKILL)
        eventually(lambda: not any(alive(child.pid) for child in children), what="its children end")
        queue.push("x", id="b")
        broken, tries = time.monotonic(), 0

        def tried(times: int) -> bool:
            nonlocal tries
            tries += capfd.readouterr().err.count("no tasks can be run")
            return tries >= times

        eventually(lambda: tried(2), what="it tries again")
        assert (queue.get("b").state, queue.get("b").attempt) == ("pending", 0)
        assert tries <= 1 + (time.monotonic() - broken) / FIRST_PAUSE
        module.write_text("def run(task): return 2\n")
        eventually(lambda: queue.get("b").state == "completed", 40)
        assert queue.get("b").result == 2
        assert queue.get("b").attempt == 1


def test_nothing_piles_up_over_many_children(lab: Lab) -> None:
    me = psutil.Process()
    with lab.queue() as queue:
        before, threads = me.num_fds(), me.num_threads()
        queue.push_many(["x"] * 60)
        options = WorkOptions(workers=3, max_tasks=1, drain=True)
        seen: list[int] = []

        worker = Worker(queue, handler="worker_handlers:pid", options=options)
        with running(worker) as reports:
            while not reports:
                seen.append(len(me.children(recursive=True)))
                time.sleep(0.02)
        assert queue.counts().completed == 60
        eventually(lambda: me.num_fds() <= before + 3, what="only what the queue keeps open for itself stays open")
        eventually(lambda: me.num_threads() <= threads + 2, what="its threads end")
        assert max(seen) <= 30, "half of the children were there at a time"
        assert me.children() == []


def test_an_idle_worker_does_not_wake_up_and_does_not_write(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("pid")
    eventually(lambda: lab.state() == "completed")
    template = template_of(supervisor)
    family = [template, *(p.pid for p in psutil.Process(template).children())]
    assert len(family) == 2

    def quiet() -> bool:
        """Look for two seconds. A busy machine may take a while until all have come to rest."""
        written, own = _written(supervisor.pid), _switches(supervisor.pid)
        switches = [_switches(pid) for pid in family]
        time.sleep(2)
        return (
            [_switches(pid) for pid in family] == switches
            and _switches(supervisor.pid) - own <= 4
            and _written(supervisor.pid) == written
        )

    eventually(quiet, 20, "two quiet seconds")


def _switches(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def _written(pid: int) -> int:
    text = Path(f"/proc/{pid}/io").read_text()
    return int(text.partition("syscw:")[2].split()[0]) if os.access(f"/proc/{pid}/io", os.R_OK) else 0
