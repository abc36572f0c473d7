"""The child: runs one task after the other for its slot, and answers for each of them.

An answer is a frame with `outcome`: done (payload, encoding), failed (error, brief), released (error, brief, delay).
`brief` is for logs: one line, and of the payload no more than an exception quotes. `leftovers` says that the task left
processes behind.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import signal
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from dfq import codec
from dfq.checks import MAX_DELAY
from dfq.errors import RetryLater
from dfq.work import streams
from dfq.work.link import LinkClosed, recv_frame, send_frame

if TYPE_CHECKING:
    import asyncio

MAX_ERROR = 2000  # characters of a traceback that are kept: its end says most
MAX_BRIEF = 200  # characters of it in a log
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


def serve(sock: socket.socket, run: Runner) -> NoReturn:
    """Be a child: take tasks from the socket until it ends. Never returns."""
    code = os.EX_SOFTWARE  # a defect of ours; the traceback is on stderr
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(LinkClosed):  # the supervisor is gone: so are we
            send_frame(sock, {"pid": os.getpid()})
            _serve(sock, run)
        code = 0
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        try:
            streams.flush()
        finally:
            os._exit(code)


def _serve(sock: socket.socket, run: Runner) -> None:
    me = os.getpid()
    while (received := recv_frame(sock)) is not None:
        frame, fds = received
        try:
            payload = codec.decode_payload(frame["payload"], frame["encoding"], "the task")
            task = CurrentTask(frame["id"], payload, frame["attempt"], frame["token"], frame["created_at"])
            streams.look_for_readers()
            answer = run(task, fds[0] if fds else None)
        finally:
            # Held open until here, so that nobody takes over while the task runs; and not a moment longer.
            for fd in fds:
                with contextlib.suppress(OSError):  # a handler may close what it does not know
                    os.close(fd)
        if os.getpid() != me:
            os._exit(0)  # a handler forked and let the copy return: only the original may answer
        streams.flush()
        streams.end_line()
        _reply(sock, answer)


def _reply(sock: socket.socket, answer: Answer) -> None:
    try:
        send_frame(sock, answer)
    except LinkClosed:
        raise
    except BaseException as e:  # noqa: BLE001 - a result may change, or raise, while it is being written as JSON
        send_frame(sock, unusable(e))


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
            return _given_back(e)
        except BaseException as e:  # noqa: BLE001 - whatever user code raises, sys.exit() too, is an answer
            return failed(_tail(e), named(e))
        try:
            value, encoding = codec.encode_result(result, MAX_RESULT)
        except BaseException as e:  # noqa: BLE001 - a result may run code of its own while it is looked at
            return unusable(e)
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


def unusable(error: BaseException) -> Answer:
    """Return the answer for a result that cannot be kept."""
    reason = f"what the handler returned cannot be kept as a result: {named(error, MAX_ERROR // 2)}"
    return failed(reason, f"unusable result: {named(error)}")


def named(error: BaseException, limit: int = MAX_BRIEF) -> str:
    """Return the kind and the words of an exception on one line, whatever its own code does."""
    kind = type(error).__name__
    text = _said(error)[: 4 * limit]
    line = " ".join(f"{kind}: {text}".split()) if text else kind
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _given_back(error: RetryLater) -> Answer:
    reason = _said(error)[:MAX_ERROR] or "the handler asked for it"
    try:
        delay = _seconds(getattr(error, "delay", None))  # a subclass may not have called __init__
    except BaseException:  # noqa: BLE001 - a property that raises: it still wants to be given back
        delay = None
    return {"outcome": "released", "error": reason, "brief": named(error), "delay": delay}


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as e:  # noqa: BLE001 - a __str__ of the user's own
        return f"<its text cannot be had: {type(e).__name__}>"


def _tail(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error)).strip()
    except BaseException:  # noqa: BLE001 - an exception with a trace that cannot be shown
        text = named(error)
    return text if len(text) <= MAX_ERROR else "…" + text[-(MAX_ERROR - 1) :]


def _seconds(delay: Any) -> float | None:
    """Return a delay that a handler gave, None if it is no time that one can wait."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or math.isnan(delay) or delay < 0:
        return None
    return float(min(delay, MAX_DELAY))
