"""The template: imports the handler once, forks a child when asked, and guards them all.

    python -m dfq.work.host FD SUPERVISOR

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
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dfq.work import streams
from dfq.work.child import PythonRunner, Runner, named, serve
from dfq.work.guard import (
    Process,
    adopt_orphans,
    change_mark,
    dies_with,
    kill_all,
    kill_group,
    outlives_parent,
    processes,
)
from dfq.work.link import LinkClosed, recv_frame, send_frame, socket_of

ZOMBIE = 5.0  # seconds after which nobody else will reap a process that we did not start


@dataclass(slots=True)
class _Child:
    pid: int
    mark: str
    reported: bool = False


class Template:
    """Forks and reaps. It has one thread and runs no task, so forking it is safe and it is always there."""

    def __init__(self, control: socket.socket, run: Runner, mark: str) -> None:
        self._control = control
        self._run = run
        self._mark = mark  # on what the handler's module started when it was imported
        self._me = os.getpid()
        self._children: dict[int, _Child] = {}
        self._helpers = {process.pid for process in processes() if process.parent == self._me}
        self._zombies: dict[int, float] = {}  # of orphans, and when we saw them first
        self._died, self._wakeup = os.pipe()
        os.set_blocking(self._died, False)
        os.set_blocking(self._wakeup, False)

    def guard(self) -> None:
        """Serve the supervisor until it is gone, then leave nothing behind."""
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        adopt_orphans()
        try:
            with contextlib.suppress(LinkClosed):
                send_frame(self._control, {"ready": True})
                while self._serve():
                    pass
        finally:
            self._end_all()

    def _serve(self) -> bool:
        poller = select.poll()  # not select(): a handler's module may have opened more than 1,023 files
        poller.register(self._control, select.POLLIN)
        poller.register(self._died, select.POLLIN)
        ready = {fd for fd, _ in poller.poll()}
        if self._died in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._died, 4096)
            self._report_the_dead()
            self._reap_orphans()
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
        with socket_of(fds[0]) as sock:
            streams.flush()
            try:
                pid = os.fork()
            except OSError as e:  # no memory, too many processes
                send_frame(self._control, {"unforked": number, "error": str(e)})
                return
            if pid == 0:
                self._be_child(sock, request["mark"])
        self._children[number] = _Child(pid, request["mark"])

    def _be_child(self, sock: socket.socket, mark: str) -> None:
        try:
            self._children.clear()  # whatever happens here, the others are not ours to end
            signal.set_wakeup_fd(-1)
            # A copy of the control socket in a child would keep the supervisor from noticing our end.
            self._control.close()
            os.close(self._died)
            os.close(self._wakeup)
            dies_with(self._me)()
            change_mark(self._mark, mark)
            serve(sock, self._run)
        finally:
            os._exit(os.EX_SOFTWARE)  # a copy that went on would be a second template

    def _report_the_dead(self) -> None:
        for number, child in self._children.items():
            if child.reported:
                continue
            # WNOWAIT: it stays a zombie, and its number its own, until the supervisor says "reap".
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None:
                continue
            self._kill_what_is_left_of(child)
            child.reported = True
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            send_frame(self._control, {"exited": number, "code": code})

    def _kill_what_is_left_of(self, child: _Child) -> None:
        others = [c.mark for c in self._children.values() if c is not child and not c.reported]

        def left(process: Process) -> bool:
            if process.carries(child.mark):
                return True
            # An orphan without any mark has hidden its origin; nobody but the dead child can be that.
            return self._is_orphan(process) and not process.carries(self._mark, *others)

        kill_group(child.pid)
        kill_all(left)

    def _is_orphan(self, process: Process) -> bool:
        """Tell whether the kernel made us the parent of a process that somebody else started."""
        if process.parent != self._me or process.pid in self._helpers:
            return False
        return all(process.pid != child.pid for child in self._children.values())

    def _reap_orphans(self) -> None:
        """Reap orphans that have ended; but not at once: a thread of the handler's module may wait for its own."""
        now = time.monotonic()
        seen = {p.pid: self._zombies.get(p.pid, now) for p in processes() if p.zombie and self._is_orphan(p)}
        for pid, since in seen.items():
            if now - since >= ZOMBIE:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        self._zombies = seen

    def _end_all(self) -> None:
        # A child holds its lease to the last, so that nobody starts the task while anything of it still runs.
        pids = [child.pid for child in self._children.values()]
        marks = [self._mark, *(child.mark for child in self._children.values())]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        kill_all(lambda p: p.pid not in pids and (p.parent in (self._me, *pids) or p.carries(*marks)))
        for pid in pids:
            kill_group(pid)
        kill_all(lambda p: p.parent == self._me or p.carries(*marks))


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
    """Be a template: take the setup from the supervisor, load the handler, then guard. Never returns."""
    code = os.EX_SOFTWARE
    try:
        _main(int(sys.argv[1]), int(sys.argv[2]))
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        try:
            streams.flush()
        finally:
            os._exit(code)  # a thread that the handler's module has started would keep us here


def _main(fd: int, supervisor: int) -> None:
    # While a handler is being imported we cannot see the supervisor's end: the kernel does.
    dies_with(supervisor)()
    # Signals for the worker as a whole are the supervisor's business; we end when it does.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    control = socket_of(fd)
    received = recv_frame(control)
    if received is None:
        return
    setup = received[0]
    _restore_path(setup)
    streams.survive_readers()
    try:
        run = load(setup)
    except BaseException as e:  # noqa: BLE001 - a module may raise anything, sys.exit() too, when imported
        trace = "".join(traceback.format_exception(e)).strip()
        with contextlib.suppress(LinkClosed):
            send_frame(control, {"error": named(e, 1000), "trace": trace[-4000:]})
        return
    gc.collect()
    gc.freeze()  # the collector of a child then leaves these pages alone, and they stay shared
    template = Template(control, run, setup["mark"])
    outlives_parent()  # from here on, what the children have started must be ended as well
    template.guard()


def _restore_path(setup: dict[str, Any]) -> None:
    """Find modules as the supervisor does, the working folder first, and leave the environment as it was."""
    if setup["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = setup["pythonpath"]
    wanted = [os.getcwd(), *setup["path"]]
    sys.path[:] = list(dict.fromkeys([*wanted, *sys.path]))


if __name__ == "__main__":
    main()
