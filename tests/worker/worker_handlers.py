"""Handlers that the tests run. A payload's `dir` is where they leave their process ids."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import dfq
from dfq import RetryLater

not_a_function = 42
loops: list[int] = []
KIN = ("child", "near", "far", "wild", "bare")


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
    delay = task.payload["delay"]
    raise RetryLater("the site is down", delay=float(delay) if delay in ("nan", "inf") else delay)


def later_some_times(task: Any) -> str:
    """Ask for another time, always or `times` times."""
    if "times" in task.payload:
        seen = Path(task.payload["dir"], "seen")
        count = len(seen.read_text()) if seen.exists() else 0
        if count == task.payload["times"]:
            return "at last"
        seen.write_text("x" * (count + 1))
    raise RetryLater(delay=task.payload["delay"])


def later_by_backoff(task: Any) -> None:
    raise RetryLater


class Hasty(RetryLater):
    def __init__(self) -> None:
        """Say nothing to RetryLater."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def later_hastily(task: Any) -> None:
    raise Hasty


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def mute(task: Any) -> None:
    raise Mute


@dataclass
class Locked:
    lock: Any


def locked(task: Any) -> Locked:
    return Locked(threading.Lock())


def endless(task: Any) -> list[Any]:
    loop: list[Any] = []
    loop += [loop, loop]
    return loop


class Fickle(dict[str, Any]):
    """Can be looked at three times: then it raises."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        if self.looks > 1:
            raise KeyError("no more looks")
        return super().items()


def fickle(task: Any) -> Fickle:
    return Fickle(a=1)


def half_a_line(task: Any) -> None:
    print("half a line", end="")


def complain(task: Any) -> None:
    raise ValueError("tile 7\nis " + "very " * 100 + "odd")


def print_and_have_printed(task: Any) -> None:
    print("by us")
    subprocess.run(["echo", "by another"], check=True)
    print("by us " * 100_000)
    sys.stderr.write("and here\n")


def siblings(task: Any) -> str:
    """Leave something odd as sys.stdout and end; or be the sibling that sees it end."""
    folder, role = task.payload["dir"], task.payload["role"]
    if role != "sibling":
        note(folder, role, os.getpid())
        sys.stdout = sys.stderr = None if role == "none" else object()  # type: ignore[assignment]
        return role
    for name in ("none", "object"):
        while not (path := Path(folder, name)).exists() or psutil.pid_exists(int(path.read_text())):
            time.sleep(0.02)
    return role


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


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def daemonise(folder: str, name: str) -> None:
    """Leave a copy of this process in a session of its own, with nothing open."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    note(folder, name, os.getpid())
    os.closerange(0, 1024)
    time.sleep(300)
    os._exit(0)


def family(task: Any) -> str:
    """Start processes that hide in four ways; the first attempt then hangs."""
    if task.attempt > 1 or Path(task.payload["dir"], "child").exists():
        kin = [path for path in Path(task.payload["dir"]).iterdir() if path.name in KIN]
        beside = sorted(path.name for path in kin if alive(int(path.read_text())))
        Path(task.payload["dir"], "beside").write_text(" ".join(beside))
        return "again"
    near = subprocess.Popen(["sleep", "300"])
    far = subprocess.Popen(["sleep", "300"], start_new_session=True)
    daemonise(task.payload["dir"], "wild")
    hidden = ["/bin/sh", "-c", "sleep 300 </dev/null >/dev/null 2>&1 & echo $!"]
    bare = subprocess.run(hidden, env={}, start_new_session=True, stdout=subprocess.PIPE, check=True)
    note(task.payload["dir"], "bare", int(bare.stdout))
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
