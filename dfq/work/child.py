"""The child: runs one task after the other for its slot, and answers for each of them.

An answer is a frame with `outcome`: done (payload, encoding), failed (error, brief), released (error, brief, delay).
`brief` is for logs and holds nothing of the payload. `leftovers` says that the task left processes behind.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from dfq import codec
from dfq.errors import QueueError, RetryLater
from dfq.work.guard import dies_with, mark_environment
from dfq.work.link import LinkClosed, recv_frame, send_frame

if TYPE_CHECKING:
    import asyncio

MAX_ERROR = 2000  # characters of a traceback that are kept: its end says most
MAX_RESULT = 64 * 1024 * 1024  # what no queue takes; the queue's own limit is looked at when the task is acked

Answer = dict[str, Any]
#: Runs a task under the descriptor of its lease, if it has one.
Runner = Callable[["CurrentTask", "int | None"], Answer]


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """What a handler is called with."""

    id: str
    payload: Any
    attempt: int
    token: int
    created_at: str


def serve(sock: socket.socket, template: int, mark: str, run: Runner) -> NoReturn:
    """Be a child: take tasks from the socket until it ends. Never returns."""
    code = 70  # EX_SOFTWARE: a defect of ours; the traceback is on stderr
    try:
        dies_with(template)()
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        mark_environment(mark)
        with contextlib.suppress(LinkClosed):  # the supervisor is gone: so are we
            send_frame(sock, {"pid": os.getpid()})
            _serve(sock, run)
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _serve(sock: socket.socket, run: Runner) -> None:
    me = os.getpid()
    while (received := recv_frame(sock)) is not None:
        frame, fds = received
        try:
            payload = codec.decode_payload(frame["payload"], frame["encoding"], "the task")
            task = CurrentTask(frame["id"], payload, frame["attempt"], frame["token"], frame["created_at"])
            answer = run(task, fds[0] if fds else None)
        finally:
            # Held open until here, so that nobody takes over while the task runs; and not a moment longer.
            for fd in fds:
                with contextlib.suppress(OSError):  # a handler may close what it does not know
                    os.close(fd)
        if os.getpid() != me:
            os._exit(0)  # a handler forked and let the copy return: only the original may answer
        _flush()
        send_frame(sock, answer)


class PythonRunner:
    """Calls a function, plain or async, with each task."""

    def __init__(self, function: Callable[[CurrentTask], Any]) -> None:
        self._function = function
        self._loop: asyncio.Runner | None = None

    def __call__(self, task: CurrentTask, lease_fd: int | None) -> Answer:
        try:
            result = self._function(task)
            if inspect.isawaitable(result):
                result = self._await(result)
        except RetryLater as e:
            reason = str(e)[:MAX_ERROR] or "the handler asked for it"
            return {"outcome": "released", "error": reason, "brief": "retry later", "delay": _seconds(e.delay)}
        except BaseException as e:  # noqa: BLE001 - whatever user code raises, sys.exit() too, is an answer
            return failed(_tail(e), type(e).__name__)
        try:
            value, encoding = codec.encode_result(result, MAX_RESULT)
        except QueueError as e:
            return failed(f"what the handler returned cannot be kept as a result: {e}", "unusable result")
        return {"outcome": "done", "payload": value, "encoding": encoding}

    def _await(self, awaitable: Any) -> Any:
        import asyncio

        async def outcome() -> Any:
            return await awaitable

        if self._loop is None:
            self._loop = asyncio.Runner()  # one for all tasks, so that a handler's connections stay usable
        return self._loop.run(outcome())


def failed(error: str, brief: str) -> Answer:
    """Return the answer for an attempt that failed."""
    return {"outcome": "failed", "error": error, "brief": brief}


def _tail(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error)).strip()
    return text if len(text) <= MAX_ERROR else "…" + text[-(MAX_ERROR - 1) :]


def _seconds(delay: Any) -> float | None:
    """Return a delay that a handler gave, None if it is no time that one can wait."""
    if isinstance(delay, int | float) and math.isfinite(delay) and delay >= 0:
        return float(delay)
    return None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
