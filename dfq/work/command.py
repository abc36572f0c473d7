"""Runs a command for each task: payload on stdin, result from stdout, the verdict from its exit code."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from dfq import codec, names
from dfq.errors import InvalidTask
from dfq.work import streams
from dfq.work.child import MAX_ERROR, Answer, CurrentTask, failed
from dfq.work.guard import adopt_orphans, dies_with, how_it_ended

EX_TEMPFAIL = 75
GRACE = 0.25  # seconds after its exit in which what a command left running may end by itself
CHUNK = 65536
_KEPT_STDERR = 4 * MAX_ERROR  # bytes: enough for the last characters, whatever they are


class CommandRunner:
    """Runs an argv, without a shell, for each task."""

    def __init__(self, command: Sequence[str], max_output: int) -> None:
        self._command = list(command)
        self._max_output = max_output

    def __call__(self, task: CurrentTask, lease_fd: int | None) -> Answer:
        try:
            stdin = _stdin(task.payload)
        except InvalidTask as e:
            return failed(str(e), "unusable payload")
        adopt_orphans()  # all that the command starts is then ours to find, whatever it does to hide
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **_environment(task)},
                pass_fds=[] if lease_fd is None else [lease_fd],
                preexec_fn=dies_with(os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as e:
            # The task was not even tried: it is this machine that cannot run it.
            reason = f"cannot run {self._command[0]!r}: {e}"
            return {"outcome": "released", "error": reason, "brief": "command cannot be run", "delay": None}
        with process, _Exchange(process, stdin, self._max_output) as exchange:
            exchange.run()
            return _answer(process.returncode, exchange)


class _Exchange:
    """Feeds a running command and collects what it says, until it ends."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, max_output: int) -> None:
        self._process = process
        self._stdin = memoryview(stdin)
        self._max_output = max_output
        self.stdout = bytearray()
        self.stdout_bytes = 0
        self.stderr = bytearray()
        self.leftovers = False
        self._selector = selectors.DefaultSelector()
        self._ended, self._wakeup = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(self._wakeup, False)

    def __enter__(self) -> _Exchange:
        # SIGCHLD through a descriptor: a command may exit while others hold its pipes open.
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        os.close(self._ended)
        os.close(self._wakeup)

    def run(self) -> None:
        process, watch = self._process, self._selector.register
        assert process.stdin
        assert process.stdout
        assert process.stderr
        for pipe in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(pipe.fileno(), False)
        watch(process.stdin, selectors.EVENT_WRITE)
        watch(process.stdout, selectors.EVENT_READ, self._take_stdout)
        watch(process.stderr, selectors.EVENT_READ, self._take_stderr)
        watch(self._ended, selectors.EVENT_READ)
        until: float | None = None
        while True:
            if until is None and process.poll() is not None:
                until = time.monotonic() + GRACE
                self._close(process.stdin)
            left = self._others_run()
            if until is not None:
                left = left or len(self._selector.get_map()) > 1
                if not left or time.monotonic() >= until:
                    self.leftovers = left
                    return
            for key, _ in self._selector.select(None if until is None else until - time.monotonic()):
                if key.fileobj == self._ended:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._ended, CHUNK)
                elif key.fileobj is process.stdin:
                    self._feed(process.stdin)
                else:
                    self._take(key.fileobj, key.data)

    def _others_run(self) -> bool:
        """Reap what the command has orphaned; tell whether it or anything that it started still runs."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
            if ended is None or ended.si_pid == self._process.pid:  # the command itself is reaped by poll()
                return True
            os.waitpid(ended.si_pid, 0)

    def _feed(self, pipe: IO[bytes]) -> None:
        try:
            self._stdin = self._stdin[os.write(pipe.fileno(), self._stdin[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to know more: its own affair
            self._stdin = self._stdin[:0]
        if not self._stdin:
            self._close(pipe)

    def _take(self, pipe: Any, keep: Any) -> None:
        try:
            data = os.read(pipe.fileno(), CHUNK)
        except BlockingIOError:
            return
        keep(data) if data else self._close(pipe)

    def _take_stdout(self, data: bytes) -> None:
        self.stdout_bytes += len(data)
        self.stdout += data[: self._max_output - len(self.stdout)]

    def _take_stderr(self, data: bytes) -> None:
        self.stderr += data
        del self.stderr[:-_KEPT_STDERR]
        streams.show(data)  # as well as kept

    def _close(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._selector.unregister(pipe)
            pipe.close()

    def result(self) -> str:
        """Return stdout as text, within the limit also after what is not UTF-8 was replaced."""
        cut = self.stdout_bytes > len(self.stdout)
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self.stdout), not cut)
        text = text.removesuffix("\n")
        if not cut and len(text.encode()) <= self._max_output:
            return text
        note = f"\n[truncated: {self.stdout_bytes:,} bytes in all]"
        return text.encode()[: max(0, self._max_output - len(note))].decode(errors="ignore") + note


def _answer(code: int, exchange: _Exchange) -> Answer:
    said = bytes(exchange.stderr).decode(errors="replace").strip()[-MAX_ERROR:]
    brief = how_it_ended(code)
    error = f"{brief}: {said}" if said else brief
    answer: Answer
    if code == 0:
        answer = {"outcome": "done", "payload": exchange.result(), "encoding": "text"}
    elif code == EX_TEMPFAIL:
        answer = {"outcome": "released", "error": error, "brief": brief, "delay": None}
    else:
        answer = failed(error, brief)
    answer["leftovers"] = exchange.leftovers
    return answer


def _stdin(payload: Any) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError as e:
            raise InvalidTask(f"payload: text is not valid Unicode: {e.reason} at {e.start}") from None
    return codec.dumps(payload, "payload") + b"\n"


def _environment(task: CurrentTask) -> Mapping[str, str]:
    # An environment cannot hold a NUL; all other ids are given as they are.
    task_id = names.encode(task.id) if "\0" in task.id else task.id
    return {
        "DFQ_TASK_ID": task_id,
        "DFQ_TASK_TOKEN": str(task.token),
        "DFQ_TASK_ATTEMPT": str(task.attempt),
    }
