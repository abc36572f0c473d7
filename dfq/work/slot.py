"""A slot: one task at a time, in a child that is replaced when it must be."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Literal

from dfq.checks import MAX_DELAY
from dfq.codec import decode_payload
from dfq.errors import InvalidTask
from dfq.queue import Task
from dfq.work.crew import Child, Crew, CrewGone
from dfq.work.guard import how_it_ended
from dfq.work.link import LinkClosed, pack, readable, recv_frame, send_frame

LOOK = 0.5  # seconds between looks at whether the lease is still ours
HANDOVER = 30.0  # seconds in which a child must take a task, or send all of an answer that it began
HANDOVERS = 3  # children that are tried for one task
FORK_PATIENCE = 30.0  # seconds to try again for a child while the machine has no room for one
SAME_STOP = 0.5  # a stop signal that also hit the child reaches us within this

Kind = Literal["done", "failed", "released", "lost"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended, before it is settled."""

    kind: Kind
    result: Any = None
    error: str = ""
    brief: str = ""  # for logs: nothing of the payload
    delay: float | None = None  # None: the backoff decides


@dataclass(frozen=True, slots=True)
class Limits:
    """What a task, and a child, may take."""

    timeout: float | None
    max_tasks: int | None
    max_rss: float | None  # MB


class Slot:
    """Runs a task to its end in a child of its own."""

    def __init__(self, crew: Callable[[], Crew], limits: Limits, stopping: Event, aborted: Event) -> None:
        self._crew = crew
        self._limits = limits
        self._stopping = stopping
        self._aborted = aborted
        self._child: Child | None = None

    def run(self, task: Task) -> Outcome:
        """Return how the task ended. Nothing of it is left running, unless a Python handler means it to be."""
        if task.lost:
            return Outcome("lost", brief="lease lost before it began")
        try:
            child = self._hand_over(task)
        except CrewGone as e:
            return Outcome("released", error=str(e), brief="not started", delay=0 if self._stopping.is_set() else None)
        outcome = self._watch(child, task)
        child.tasks += 1
        if self._worn_out(child):
            self.retire()
        return outcome

    def abort(self) -> None:
        """Kill what runs. Called by another thread, after `aborted` was set."""
        if child := self._child:
            child.strike()

    def discard(self) -> None:
        """Kill the child, whatever it does, and let go of it."""
        if self._child is not None:
            self._child.kill()
            self.retire()

    def retire(self) -> None:
        """Let go of the child."""
        if self._child is not None:
            self._child.retire()
            self._child = None

    def _hand_over(self, task: Task) -> Child:
        frame = {
            "id": task.id,
            "attempt": task.attempt,
            "token": task.token,
            "created_at": task.created_at,
            **pack(task.payload),
        }
        for _ in range(HANDOVERS):
            child = self._ready_child()
            lease = task.liveness_fd
            try:
                child.sock.settimeout(HANDOVER)
                send_frame(child.sock, frame, [] if lease is None else [lease])
                return child
            except (LinkClosed, TimeoutError):
                # It died (or hung) with nothing to do and never had the whole task: try another.
                child.kill()
                self.retire()
        raise CrewGone("worker processes end before they take the task")

    def _ready_child(self) -> Child:
        if self._child is not None and self._child.ended.is_set():
            self.retire()
        if self._child is None:
            self._child = self._fork()
        return self._child

    def _fork(self) -> Child:
        give_up, pause = time.monotonic() + FORK_PATIENCE, 0.2
        while True:
            crew = self._crew()
            try:
                return crew.new_child()
            except CrewGone:
                if not crew.alive or time.monotonic() > give_up or self._stopping.wait(pause):
                    raise
            pause = min(2 * pause, 5.0)

    def _watch(self, child: Child, task: Task) -> Outcome:
        timeout = self._limits.timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if task.lost:
                return self._end(child, Outcome("lost", brief="lease lost"))
            if self._aborted.is_set():
                return self._end(child, _STOPPED)
            left = LOOK if deadline is None else min(LOOK, deadline - time.monotonic())
            if left <= 0:
                message = f"timed out after {timeout:g} s"
                return self._end(child, Outcome("failed", error=message, brief=message))
            if readable(child.sock, left):
                break
        try:
            received = recv_frame(child.sock)
        except (LinkClosed, TimeoutError):
            received = None
        if received is None:
            return self._end(child, self._death(child, task))
        answer = received[0]
        outcome = _outcome(answer)
        # What a command left running must be gone before anybody else may start the task.
        return self._end(child, outcome) if answer.get("leftovers") or outcome is _NONSENSE else outcome

    def _end(self, child: Child, outcome: Outcome) -> Outcome:
        child.kill()
        self.retire()
        return outcome

    def _death(self, child: Child, task: Task) -> Outcome:
        child.kill()  # it may only have closed its socket
        if task.lost:
            return Outcome("lost", brief="lease lost")
        # A service manager that stops us signals every process at once: that is not the task's fault.
        if child.code in _STOPS and self._stopping.wait(SAME_STOP):
            return _STOPPED
        if self._aborted.is_set():
            return _STOPPED
        if not child.ended.is_set():
            brief = "the worker process did not answer and was killed"
        elif child.code is None:
            brief = "the worker's template process was killed"
        else:
            how = how_it_ended(child.code)
            brief = how if child.code < 0 else f"the worker process ended ({how}) before the task was done"
        return Outcome("failed", error=brief, brief=brief)

    def _worn_out(self, child: Child) -> bool:
        if self._child is not child:
            return False
        limits = self._limits
        if limits.max_tasks is not None and child.tasks >= limits.max_tasks:
            return True
        return limits.max_rss is not None and _rss_mb(child) > limits.max_rss


_STOPS = (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
#: A handler can write to any descriptor of its process, also to the one that answers.
_NONSENSE = Outcome("failed", error="the worker process sent an answer that makes no sense", brief="a senseless answer")
_STOPPED = Outcome("released", error="the worker was stopped", brief="worker stopped", delay=0)


def _outcome(answer: dict[str, Any]) -> Outcome:
    kind, error, brief, delay = (answer.get(key) for key in ("outcome", "error", "brief", "delay"))
    if kind == "done" and "payload" in answer:
        try:
            return Outcome("done", decode_payload(answer["payload"], answer.get("encoding"), "the result"))
        except InvalidTask as e:
            return Outcome("failed", error=str(e), brief="unusable result")
    if kind not in ("failed", "released") or not isinstance(error, str) or not isinstance(brief, str):
        return _NONSENSE
    if delay is not None and (
        isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= MAX_DELAY
    ):
        return _NONSENSE
    # A traceback may quote half a surrogate, which no file can hold.
    return Outcome(kind, error=error.encode(errors="replace").decode(), brief=brief, delay=delay)


def refused(outcome: Outcome, reason: str) -> Outcome:
    """Return the outcome of a task whose result the queue does not take."""
    return replace(outcome, kind="failed", result=None, error=reason, brief="result refused")


def _rss_mb(child: Child) -> float:
    import psutil

    try:
        rss: int = psutil.Process(child.pid).memory_info().rss
    except psutil.Error:
        return 0.0  # it just died: the next task finds out
    return rss / 1e6
