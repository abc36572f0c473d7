"""The supervisor's side of its template and its children: start, watch, end."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dfq
from dfq.errors import ConfigError
from dfq.work.guard import MARK, kill_all, kill_group, kill_marked, new_mark
from dfq.work.link import LinkClosed, pair, readable, recv_frame, send_frame

HELLO = 30.0  # seconds in which a new child must have reported
EXIT = 5.0  # seconds to wait for the report of a kill; SIGKILL holds even if the report is late
IMPORT_LOOK = 0.2  # seconds between looks at whether we should stop while a handler is being imported


class CrewGone(Exception):
    """There is no child to be had now."""


class Child:
    """A process that runs tasks for one slot."""

    def __init__(self, crew: Crew, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.mark = new_mark()
        self.pid: int | None = None
        self.ended = threading.Event()
        self.code: int | None = None  # once it ended: its exit code; None if the template went down with it
        self.tasks = 0
        self._crew = crew
        self.let_go = False

    def strike(self) -> None:
        """Kill it and its group, without waiting for the end."""
        self._crew.kill(self)

    def kill(self) -> None:
        """Kill it and all that it started; return once that was done, or SIGKILL is on its way."""
        self.strike()
        if not self.ended.wait(EXIT):
            kill_marked(self.mark)  # the template, whose work this is, does not react

    def retire(self) -> None:
        """Let it end when it has nothing to do any more. It must not be used after this."""
        self._crew.release(self)


class Crew:
    """A template and the children it has forked."""

    def __init__(self, *, handler: str | None, command: Sequence[str] | None, max_output: int) -> None:
        self._handler = handler
        self._mark = new_mark()  # on the template and what a handler's module starts when it is imported
        self._setup = {
            "handler": handler,
            "command": list(command) if command is not None else None,
            "max_output": max_output,
            "mark": self._mark,
            "path": [entry for entry in sys.path if entry],
            "pythonpath": os.environ.get("PYTHONPATH"),
        }
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._lock = threading.Lock()  # over _children, what is sent, and the numbers of the dead
        self.alive = False

    def start(self, cancelled: Callable[[], bool]) -> None:
        """Start the template; return when it has loaded the handler. Raises ConfigError, CrewGone."""
        self._control, theirs = pair()
        # So that it finds this very dfq, wherever it was imported from; the template takes it out again.
        home = str(Path(dfq.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # -P: a json.py or dfq.py in the working folder is the handler's business, not the template's.
                    [sys.executable, "-P", "-m", "dfq.work.host", str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # stdout is for data; what handlers print is for people
                    env={**os.environ, "PYTHONPATH": path, MARK: f"{os.environ.get(MARK, '')}{self._mark}."},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C in a terminal is meant for the supervisor
                )
        except OSError as e:
            self._control.close()
            raise CrewGone(f"no process can be started: {e}") from e
        try:
            send_frame(self._control, self._setup)
            self._await_ready(cancelled)
        except LinkClosed:
            self.close()
            raise CrewGone(f"the template process ended ({self._process.returncode})") from None
        except BaseException:
            self.close()
            raise
        self.alive = True
        threading.Thread(target=self._listen, name="dfq-crew", daemon=True).start()

    def _await_ready(self, cancelled: Callable[[], bool]) -> None:
        while not readable(self._control, IMPORT_LOOK):
            if cancelled():
                raise CrewGone("the worker was stopped")
        received = recv_frame(self._control)
        if received is None:
            self._process.wait(EXIT)
            raise ConfigError(
                f"{self._what()} ended the process that loaded it (code {self._process.returncode}); "
                f"what it wrote to stderr may say why"
            )
        answer = received[0]
        if "error" in answer:
            raise ConfigError(
                f"{self._what()} cannot be loaded: {answer['error']}. Name it as package.module:function and start "
                f"the worker where the package can be imported (the working folder is {os.getcwd()})\n{answer['trace']}"
            )

    def _what(self) -> str:
        return f"handler {self._handler!r}" if self._handler else "the command runner"

    def new_child(self) -> Child:
        """Fork a child. Raises CrewGone."""
        ours, theirs = pair()
        with theirs, self._lock:
            child = Child(self, next(self._numbers), ours)
            if not self.alive:
                ours.close()
                raise CrewGone("the template process is gone")
            self._children[child.number] = child
            request = {"op": "fork", "child": child.number, "mark": child.mark}
            with contextlib.suppress(LinkClosed):  # the listener notices as well; the missing hello tells us
                send_frame(self._control, request, [theirs.fileno()])
        ours.settimeout(HELLO)
        try:
            hello = recv_frame(ours)
        except LinkClosed:
            hello = None
        except TimeoutError:
            # It neither forks nor says why not: somebody has stopped it, and nothing goes on until it is replaced.
            self._kill_template()
            hello = None
        if hello is None:
            child.retire()
            raise CrewGone("no worker process could be started")
        pid = hello[0].get("pid")
        if not isinstance(pid, int) or pid <= 1:  # it will be killed by this number one day
            child.retire()
            raise CrewGone("a worker process did not say who it is")
        with self._lock:
            child.pid = pid
        return child

    def kill(self, child: Child) -> None:
        """Kill a child and its group, if its number is still its own."""
        with self._lock:
            if child.pid is not None and child.number in self._children:
                kill_group(child.pid)

    def release(self, child: Child) -> None:
        """Let go of a child: it ends, and its number may become another's."""
        with self._lock:
            child.let_go = True
            child.sock.close()
            if child.ended.is_set():
                self._reap(child)

    def close(self) -> None:
        """End the template, and with it all that is left of the children. May be called twice."""
        with contextlib.suppress(OSError):  # closed by the listener, which saw it end
            self._control.shutdown(socket.SHUT_RDWR)
        if not self.alive:
            self._control.close()  # else the listener does, once it has seen the end
        try:
            self._process.wait(EXIT)
        except subprocess.TimeoutExpired:
            self._kill_template()
            self._process.wait()
        kill_marked(self._mark)  # what a template that was killed could not end itself

    def _kill_template(self) -> None:
        pid = self._process.pid
        kill_all(lambda process: process.parent == pid)  # while it can still be seen whose they are
        self._process.kill()

    def _listen(self) -> None:
        """Take the reports of the template until it is gone."""
        while True:
            try:
                received = recv_frame(self._control)
            except LinkClosed:
                received = None
            if received is None:
                break
            self._take(received[0])
        self._mourn()

    def _take(self, report: dict[str, Any]) -> None:
        with self._lock:
            number, code = report.get("unforked", report.get("exited")), report.get("code")
            if not isinstance(number, int) or number not in self._children:
                return  # the handler's module has the socket as well; what it writes there must not end this thread
            child = self._children[number]
            if "unforked" in report:
                del self._children[number]
            else:
                child.code = code if isinstance(code, int) else None
            self._set_ended(child)
            if child.let_go:
                self._reap(child)

    def _mourn(self) -> None:
        # The children die with the template, by the kernel's hand. What they started is ours to end.
        with self._lock:
            self.alive = False
            self._control.close()
            for child in self._children.values():
                if not child.ended.is_set():
                    if child.pid is not None:
                        kill_group(child.pid)
                    kill_marked(child.mark)
            for child in self._children.values():
                self._set_ended(child)
            self._children.clear()

    def _set_ended(self, child: Child) -> None:
        child.ended.set()
        if not child.let_go:
            # Wakes the slot that waits for an answer; one that was sent in time can still be read.
            with contextlib.suppress(OSError):  # its end closed ours already
                child.sock.shutdown(socket.SHUT_RDWR)

    def _reap(self, child: Child) -> None:
        if self._children.pop(child.number, None) is None:
            return
        with contextlib.suppress(LinkClosed):  # no template, no zombie
            send_frame(self._control, {"op": "reap", "child": child.number})
