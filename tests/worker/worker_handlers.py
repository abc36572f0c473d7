"""Handlers that the tests run. A payload's `dir` is where they leave their process ids."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dfq
from dfq import RetryLater

not_a_function = 42
loops: list[int] = []


def echo(task: Any) -> dict[str, Any]:
    return {
        "id": task.id,
        "attempt": task.attempt,
        "token": task.token,
        "created_at": task.created_at,
        "text": task.payload.decode() if isinstance(task.payload, bytes) else task.payload,
    }


def blob(task: Any) -> bytes:
    return b"\xff\x00" + task.payload


async def async_echo(task: Any) -> list[Any]:
    await asyncio.sleep(0)
    loops.append(id(asyncio.get_running_loop()))
    return [task.payload, len(set(loops)), len(loops)]


async def async_raise(task: Any) -> None:
    await asyncio.sleep(0)
    raise LookupError("async trouble")


def pid(task: Any) -> int:
    return os.getpid()


def raise_long(task: Any) -> None:
    raise ValueError("x" * 5000 + " the very end")


def leave(task: Any) -> None:
    sys.exit(3)


def vanish(task: Any) -> None:
    os._exit(0)


def unusable(task: Any) -> object:
    return {"when": object()}


def huge(task: Any) -> str:
    return "x" * 300_000


def later(task: Any) -> None:
    raise RetryLater("the site is down", delay=task.payload["delay"])


def later_by_backoff(task: Any) -> None:
    raise RetryLater


def segfault(task: Any) -> None:
    ctypes.string_at(0)


def kill_self(task: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_template(task: Any) -> None:
    if task.attempt == 1:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


def grow(task: Any) -> int:
    loops.extend([0] * 10_000_000)  # 80 MB that stay
    return os.getpid()


def shout(task: Any) -> None:
    print("to stdout")
    print("to stderr", file=sys.stderr)


def note(folder: str, name: str, number: int) -> None:
    """Leave a process id where the tests find it."""
    path = Path(folder, f".{name}")
    path.write_text(str(number))
    path.rename(Path(folder, name))


def family(task: Any) -> str:
    """Start a process in this group and one in a session of its own; the first attempt then hangs."""
    if task.attempt > 1 or Path(task.payload["dir"], "child").exists():
        return "again"
    near = subprocess.Popen(["sleep", "300"])
    far = subprocess.Popen(["sleep", "300"], start_new_session=True)
    note(task.payload["dir"], "near", near.pid)
    note(task.payload["dir"], "far", far.pid)
    Path(task.payload["dir"], "source").write_text(dfq.__file__)
    note(task.payload["dir"], "child", os.getpid())
    time.sleep(300)
    return "slept"


def wait_for_go(task: Any) -> str:
    """Run until the test says go."""
    folder = Path(task.payload["dir"])
    note(str(folder), "child", os.getpid())
    while not (folder / "go").exists():
        time.sleep(0.02)
    return "went"
