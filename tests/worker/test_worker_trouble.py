"""A queue that cannot be reached, a handler that stops being importable, and long runs."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from worker_kit import Lab, alive, eventually, template_of

from dfq.errors import QueueUnavailable
from dfq.queue import QueueManager
from dfq.worker import Worker, WorkOptions, WorkReport


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


def test_an_ack_that_never_gets_through_ends_with_the_lease(lab: Lab) -> None:
    with lab.queue() as queue, lab.queue() as other:
        queue.push("x", id="a")
        away: Any = Unreachable(queue, ack=1_000_000)
        options = WorkOptions(once=True, lease=1.0)
        worker = Worker(away, handler="worker_handlers:pid", options=options)
        threading.Timer(1.0, lambda: other.cancel("a")).start()
        assert worker.run() == WorkReport(lost=1)


def test_stop_works_from_another_thread(lab: Lab) -> None:
    with lab.queue() as queue:
        worker = Worker(queue, handler="worker_handlers:wait_for_go")
        reports: list[WorkReport] = []
        thread = threading.Thread(target=lambda: reports.append(worker.run()))
        thread.start()
        queue.push({"dir": str(lab.notes)}, id="a")
        lab.noted("child")
        worker.stop()
        worker.stop()
        thread.join(10)
        assert reports == [WorkReport(released=1)]
        assert queue.get("a").attempt == 0


def test_a_handler_that_breaks_while_we_work_does_not_spin(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    module = lab.root / "brittle.py"
    module.write_text("def run(task): return 1\n")
    monkeypatch.chdir(lab.root)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with lab.queue() as queue:
        worker = Worker(queue, handler="brittle:run")
        thread = threading.Thread(target=worker.run)
        thread.start()
        queue.push("x", id="a")
        eventually(lambda: queue.get("a").state == "completed")
        module.write_text("raise OSError('half written')\n")
        [template] = [p for p in psutil.Process().children() if "dfq.work.host" in p.cmdline()]
        children = template.children()
        template.kill()
        eventually(lambda: not any(alive(child.pid) for child in children), what="its children end")
        queue.push("x", id="b")
        time.sleep(1.5)
        assert queue.get("b").state in ("leased", "pending")
        module.write_text("def run(task): return 2\n")
        eventually(lambda: queue.get("b").state == "completed")
        assert queue.get("b").result == 2
        assert queue.get("b").attempt == 1
        worker.stop()
        thread.join(10)


def test_nothing_piles_up_over_many_children(lab: Lab) -> None:
    me = psutil.Process()
    with lab.queue() as queue:
        before, threads = me.num_fds(), me.num_threads()
        queue.push_many(["x"] * 60)
        options = WorkOptions(workers=3, max_tasks=1, drain=True)
        seen: list[int] = []

        def look() -> None:
            for _ in range(200):
                if thread.is_alive():
                    seen.append(len(me.children(recursive=True)))
                    time.sleep(0.02)

        worker = Worker(queue, handler="worker_handlers:pid", options=options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        look()
        thread.join(20)
        assert queue.counts().completed == 60
        assert me.num_fds() <= before + 3  # what the queue keeps open for itself
        assert me.num_threads() <= threads + 2
        assert max(seen) <= 1 + 2 * 3 + 2
        assert me.children() == []


def test_an_idle_worker_does_not_wake_up_and_does_not_write(lab: Lab) -> None:
    lab.push()
    supervisor = lab.start("pid")
    eventually(lambda: lab.state() == "completed")
    template = template_of(supervisor)
    family = [template, *(p.pid for p in psutil.Process(template).children())]
    assert len(family) == 2
    time.sleep(0.5)
    written = _written(supervisor.pid)
    switches = [_switches(pid) for pid in family]
    own = _switches(supervisor.pid)
    time.sleep(2)
    assert [_switches(pid) for pid in family] == switches
    assert _switches(supervisor.pid) - own <= 4
    assert _written(supervisor.pid) == written


def _switches(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        total += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def _written(pid: int) -> int:
    text = Path(f"/proc/{pid}/io").read_text()
    return int(text.partition("syscw:")[2].split()[0]) if os.access(f"/proc/{pid}/io", os.R_OK) else 0
