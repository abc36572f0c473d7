"""The processes of soak.py: customers and workers that are forked by a nursery, and the handler of `dfq work`.

    python soak_parts.py FOLDER     reads "worker 7" or "customer 8" from stdin, forks it, and prints its pid

A fork of a process that has imported everything costs milliseconds; thousands of them are killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from journal import Journal

import dfq
from dfq.work.guard import dies_with

LEASE = 1.5
MAX_ATTEMPTS = 5
SETTINGS: dict[str, Any] = {"lease": LEASE, "max_attempts": MAX_ATTEMPTS, "shards": 16}
STOP_CUSTOMERS, STOP_WORKERS = "stop-customers", "stop-workers"
BUSY = "busy-"  # and a pid: this one is at a task that takes longer than a lease
CROWD = 40  # waiting tasks at which customers stop pushing
RATE = 40.0  # tasks that the customers push in a second


def open_soak(root: Path, durability: str = "fast") -> dfq.QueueManager:
    return dfq.open_queue("soak", root, durability=durability, **SETTINGS)


def open_by_chance(folder: Path) -> dfq.QueueManager:
    """Open the queue as one of its many users: some wait for the disk, most do not, so that more happens."""
    return open_soak(Path((folder / "root").read_text()), random.choice(("full", "fast", "fast")))


def mark() -> str:
    return os.urandom(6).hex()


# -- who works --------------------------------------------------------------------------------------


class GaveUp(Exception):
    """An attempt that fails."""


def side_effect(journal: Journal, task: Any) -> str:
    """Do a task: write down that it ran, and take a moment. Returns the mark of this run, which is its result."""
    mine = mark()
    journal.note("run", task.id, task.token, mine)
    time.sleep(random.uniform(0.5, 1) * task.payload["ms"] / 1000)
    if task.attempt <= task.payload["fails"]:
        raise GaveUp(f"attempt {task.attempt} of a task that fails {task.payload['fails']} times")
    return mine


def handle(task: Any) -> str:
    """Do a task of `dfq work`."""
    return side_effect(Journal(Path(os.environ["SOAK_JOURNAL"])), task)


def work(folder: Path, journal: Journal) -> None:
    """Work by the library alone, until told to stop."""
    queue = open_by_chance(folder)
    while not (folder / STOP_WORKERS).exists():
        try:
            tasks = queue.poll(random.randint(1, 3), wait=0.5)
        except dfq.QueueUnavailable:
            journal.note("refused")
            time.sleep(0.05)
            continue
        for task in tasks:
            do(queue, journal, task, folder)


def do(queue: dfq.QueueManager, journal: Journal, task: dfq.Task, folder: Path) -> None:
    """Run a task and settle it, as long as it takes or it is ours."""
    result, error = "", ""
    busy = folder / f"{BUSY}{os.getpid()}"
    try:
        if task.payload["ms"] > 1000 * LEASE:
            busy.touch()
        result = side_effect(journal, task)
    except GaveUp as e:
        error = str(e)
    finally:
        busy.unlink(missing_ok=True)
    back = random.random() < 0.02
    while True:
        try:
            if error or back:
                queue.nack(task, error or None, delay=random.choice((0, 0, 0.2)), count=bool(error))
            else:
                queue.ack(task, result=result)
                journal.note("acked", task.id, task.token, result)
            return
        except dfq.LeaseLost:
            return
        except dfq.QueueUnavailable:
            journal.note("refused")
            time.sleep(0.05)


# -- who has things done ----------------------------------------------------------------------------


class Customer:
    """Pushes tasks, and cancels, retries and reruns some of them: only its own, so that it knows what to expect."""

    def __init__(self, folder: Path, journal: Journal, number: int) -> None:
        self._queue = open_by_chance(folder)
        self._journal = journal
        self._number = number
        self._pushed: dict[str, dict[str, Any]] = {}
        self._crowded = False

    def push(self) -> None:
        task_id = f"c{self._number}/{len(self._pushed)}"
        # Some take longer than a lease: then a worker that was stopped wakes while another has its task.
        if random.random() < 0.95:
            ms, fails = random.choice((5.0, 10.0, 60.0)), random.choice((0, 0, 0, 0, 1, 2, MAX_ATTEMPTS))
        else:
            ms, fails = 2000 * LEASE, 0
        payload = {"ms": ms, "fails": fails}
        delay = random.choice((0, 0, 0, 0.1, 0.5, 2))
        if not self._tried(lambda: self._queue.push(payload, id=task_id, priority=random.randint(0, 9), delay=delay)):
            return
        self._journal.note("pushed", task_id)
        self._pushed[task_id] = payload

    def sees_a_crowd(self) -> bool:
        """Tell whether more is waiting than will be done soon. It looks now and then."""
        if random.random() < 0.1:
            try:
                self._crowded = self._queue.counts().pending > CROWD
            except dfq.QueueUnavailable:
                self._crowded = False
        return self._crowded

    def meddle(self) -> None:
        """Do something to a task that was pushed."""
        if not self._pushed:
            return
        task_id = random.choice(list(self._pushed)[-200:])
        what = random.random()
        if what < 0.3:
            if self._tried(lambda: self._queue.cancel(task_id)):
                self._journal.note("cancelled", task_id)
        elif what < 0.6:
            self._tried(lambda: self._queue.retry(task_id))
        elif self._is_completed(task_id):
            payload = {**self._pushed[task_id], "again": mark()}
            if self._tried(lambda: self._queue.push(payload, id=task_id, if_exists="rerun")):
                self._journal.note("rerun", task_id)

    def _is_completed(self, task_id: str) -> bool:
        try:
            info = self._queue.get(task_id)
        except dfq.QueueError:
            return False
        return info.state == "completed" and not info.ended_without_result

    def _tried(self, act: Any) -> bool:
        """Tell whether something was done, for sure."""
        try:
            act()
        except (dfq.TaskNotFound, dfq.TaskExists):
            return False
        except dfq.QueueUnavailable:
            self._journal.note("refused")
            return False
        return True


def buy(folder: Path, journal: Journal, number: int) -> None:
    """Be a customer until told to stop."""
    customer = Customer(folder, journal, number)
    while not (folder / STOP_CUSTOMERS).exists():
        if not customer.sees_a_crowd():
            customer.push()
        if random.random() < 0.15:
            customer.meddle()
        time.sleep(random.random() * 2 / RATE)


# -- the nursery ------------------------------------------------------------------------------------


def born(role: str, number: int, folder: Path) -> int:
    """Fork a process; return its pid."""
    me = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        dies_with(me)()
        random.seed()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        journal = Journal(folder / "journal")
        with contextlib.suppress(KeyboardInterrupt):
            work(folder, journal) if role == "worker" else buy(folder, journal, number)
        code = 0
    except BaseException:  # noqa: BLE001 - a forked process must not return into its parent's code
        (folder / f"crash-{role}-{number}").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def nurse(folder: Path) -> None:
    """Fork what is asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    gc.freeze()
    for line in sys.stdin:
        role, number = line.split()
        print(born(role, int(number), folder), flush=True)


if __name__ == "__main__":
    nurse(Path(sys.argv[1]))
