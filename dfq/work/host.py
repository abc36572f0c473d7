"""The template: imports the handler once, forks a child when asked, and guards them all.

    python -m dfq.work.host FD

FD is a socket to the supervisor. When it ends, everything that was started here ends. Requests:
    {"op": "fork", "child": N, "mark": M} with the child's socket; {"op": "reap", "child": N}
Reports:
    {"ready": true} or {"error": …} once; {"exited": N, "code": C} for each child, negative for a signal;
    {"unforked": N, "error": …} for a child that could not be made
"""

from __future__ import annotations

import contextlib
import gc
import os
import pkgutil
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dfq.work.child import PythonRunner, Runner, serve
from dfq.work.guard import kill_group, kill_marked
from dfq.work.link import LinkClosed, recv_frame, send_frame


@dataclass(slots=True)
class _Child:
    pid: int
    mark: str
    reported: bool = False


class Template:
    """Forks and reaps. It has one thread and runs no task, so forking it is safe and it is always there."""

    def __init__(self, control: socket.socket, run: Runner) -> None:
        self._control = control
        self._run = run
        self._children: dict[int, _Child] = {}
        self._died, self._wakeup = os.pipe()
        os.set_blocking(self._died, False)
        os.set_blocking(self._wakeup, False)

    def guard(self) -> None:
        """Serve the supervisor until it is gone, then leave nothing behind."""
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            with contextlib.suppress(LinkClosed):
                send_frame(self._control, {"ready": True})
                while self._serve():
                    pass
        finally:
            self._end_all()

    def _serve(self) -> bool:
        watched: list[int] = [self._control.fileno(), self._died]
        ready, _, _ = select.select(watched, [], [])
        if self._died in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._died, 4096)
            self._report_the_dead()
        if self._control.fileno() in ready:
            received = recv_frame(self._control)
            if received is None:
                return False
            self._obey(*received)
        return True

    def _obey(self, request: dict[str, Any], fds: list[int]) -> None:
        number = request["child"]
        if request["op"] == "reap":
            child = self._children.pop(number)
            os.waitpid(child.pid, 0)
            return
        sock = socket.socket(fileno=fds[0])
        with sock:
            _flush()
            template = os.getpid()
            try:
                pid = os.fork()
            except OSError as e:  # no memory, too many processes
                send_frame(self._control, {"unforked": number, "error": str(e)})
                return
            if pid == 0:
                signal.set_wakeup_fd(-1)
                # A copy of the control socket in a child would keep the supervisor from noticing our end.
                self._control.close()
                os.close(self._died)
                os.close(self._wakeup)
                serve(sock, template, request["mark"], self._run)
        self._children[number] = _Child(pid, request["mark"])

    def _report_the_dead(self) -> None:
        for number, child in self._children.items():
            if child.reported:
                continue
            # WNOWAIT: it stays a zombie, and its number its own, until the supervisor says "reap".
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None:
                continue
            kill_group(child.pid)
            kill_marked(child.mark)
            child.reported = True
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            send_frame(self._control, {"exited": number, "code": code})

    def _end_all(self) -> None:
        for child in self._children.values():
            kill_group(child.pid)
        for child in self._children.values():
            kill_marked(child.mark)


def load(setup: dict[str, Any]) -> Runner:
    """Return what runs the tasks; raise whatever importing a handler raises."""
    if setup["command"] is not None:
        from dfq.work.command import CommandRunner

        return CommandRunner(setup["command"], setup["max_output"])
    function: Callable[..., Any] = pkgutil.resolve_name(setup["handler"])
    if not callable(function):
        raise TypeError(f"it is a {type(function).__name__}, not a function")
    return PythonRunner(function)


def main() -> None:
    """Be a template: take the setup from the supervisor, load the handler, then guard."""
    # Signals for the worker as a whole are the supervisor's business; we end when it does.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    received = recv_frame(control)
    if received is None:
        return
    setup = received[0]
    _restore_path(setup)
    if isinstance(sys.stdout, type(sys.stderr)) and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # what a handler prints is seen when it prints it
    try:
        run = load(setup)
    except BaseException as e:  # noqa: BLE001 - a module may raise anything, sys.exit() too, when imported
        trace = "".join(traceback.format_exception(e)).strip()
        with contextlib.suppress(LinkClosed):
            send_frame(control, {"error": f"{type(e).__name__}: {e}"[:1000], "trace": trace[-4000:]})
        return
    gc.collect()
    gc.freeze()  # the collector of a child then leaves these pages alone, and they stay shared
    Template(control, run).guard()


def _restore_path(setup: dict[str, Any]) -> None:
    """Find modules as the supervisor does, the working folder first, and leave the environment as it was."""
    if setup["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setup["pythonpath"]
    wanted = [os.getcwd(), *setup["path"]]
    sys.path[:] = list(dict.fromkeys([*wanted, *sys.path]))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    main()
