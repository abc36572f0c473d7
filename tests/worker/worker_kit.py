"""What the worker tests share: workers as processes, and looking for what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import dfq
from dfq.queue import QueueManager
from dfq.worker import Worker, WorkReport

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent


def eventually(condition: Callable[[], Any], seconds: float = 30.0, what: str = "") -> Any:
    """Return what a condition gives as soon as it is true; fail if it does not become so."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"did not happen within {seconds} s: {what or condition}"
        time.sleep(0.02)
    return value


def alive(pid: int) -> bool:
    """Tell whether a process runs: a zombie does not."""
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != psutil.STATUS_ZOMBIE


@dataclass
class Lab:
    """A queue on disk, a folder for process ids, and the sources that workers run from."""

    root: Path
    source: Path = SOURCE
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def notes(self) -> Path:
        folder = self.root / "notes"
        folder.mkdir(exist_ok=True)
        return folder

    @contextmanager
    def queue(self, **settings: Any) -> Iterator[QueueManager]:
        with dfq.open_queue("t", root=self.root, durability="fast", **settings) as queue:
            yield queue

    def push(self, task_id: str = "a") -> None:
        with self.queue() as queue:
            queue.push({"dir": str(self.notes)}, id=task_id)

    def start(
        self,
        handler: str | None = None,
        command: list[str] | None = None,
        settings: dict[str, Any] | None = None,
        stderr: int | None = None,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a worker process."""
        spec = {
            "root": str(self.root),
            "handler": f"worker_handlers:{handler}" if handler and ":" not in handler else handler,
            "command": command,
            "settings": settings or {},
            "options": options,
        }
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker_main.py"), json.dumps(spec)],
            stdout=subprocess.PIPE,
            stderr=stderr or (self.root / f"stderr-{len(self.started)}").open("w"),
            text=True,
            env={**os.environ, "PYTHONPATH": f"{self.source}{os.pathsep}{self.root}"},  # root: modules of a test's own
        )
        self.started.append(process)
        return process

    def report(self, process: subprocess.Popen[str], seconds: float = 60.0) -> dict[str, int]:
        """Return the report of a worker that comes to its end, without the zeros."""
        out, _ = process.communicate(timeout=seconds)
        assert process.returncode == 0, self.stderr(process)
        return {name: count for name, count in json.loads(out).items() if count}

    def stderr(self, process: subprocess.Popen[str]) -> str:
        return (self.root / f"stderr-{self.started.index(process)}").read_text()

    def noted(self, name: str) -> int:
        """Return the process id that a task has left, once it has."""
        path = self.notes / name
        eventually(path.exists, what=f"the task starts and notes {name}")
        return int(path.read_text())

    def state(self, task_id: str = "a") -> str:
        with self.queue() as queue:
            return queue.get(task_id).state

    def clean_up(self) -> None:
        """Kill whatever is left: mutants leave things behind."""
        for process in self.started:
            if process.poll() is None:
                for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                    kill_if_there(each.pid)
            process.communicate()
        for path in self.notes.iterdir():
            if path.read_text().strip().isdigit():
                kill_if_there(int(path.read_text()))


def kill_if_there(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def template_of(supervisor: subprocess.Popen[str]) -> int:
    """Return the process id of a worker's template."""
    [template] = templates(supervisor.pid)
    return template


def templates(supervisor: int) -> list[int]:
    """Return the process ids of the templates that a process has: one, but for a moment."""
    found = []
    for child in psutil.Process(supervisor).children():
        with suppress(psutil.NoSuchProcess):  # also when it is a zombie
            if "dfq.work.host" in child.cmdline():
                found.append(child.pid)
    return found


@contextmanager
def running(worker: Worker) -> Iterator[list[WorkReport]]:
    """Run a worker in a thread; give the list that its report will be in, and stop it at the end."""
    reports: list[WorkReport] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()))
    thread.start()
    try:
        yield reports
    finally:
        if thread.is_alive():
            worker.stop()
        thread.join(10)
        if thread.is_alive():
            worker.stop()  # what still runs is given back
            thread.join(10)
    assert not thread.is_alive(), "the worker does not stop"
