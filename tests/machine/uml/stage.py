"""What every stage has in common: its arguments, its one line of figures, its exit status, and what it installs."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

REPO = Path(__file__).resolve().parents[3]
CACHE = REPO / ".cache"
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"

DONE, VIOLATED, NOT_RUN = 0, 1, 3

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE, _PR_SET_PDEATHSIG = 0x20000, 0x4000, 0x40000, 1


class CannotRun(Exception):
    """The stage cannot run on this machine; the text says why."""


@dataclass
class Report:
    """What a stage found out. Figures are by what they count, in words."""

    stage: str
    violations: list[str] = field(default_factory=list)
    figures: dict[str, float | int | str] = field(default_factory=dict)
    not_covered: list[str] = field(default_factory=list)

    def line(self, seconds: float, not_run: str | None) -> str:
        return json.dumps(
            {
                "stage": self.stage,
                "violations": len(self.violations),
                "seconds": round(seconds, 1),
                "figures": self.figures,
                "not_run": not_run,
                "not_covered": self.not_covered,
            }
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments(about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seconds", type=float, default=40, help="how long to work, about")
    parser.add_argument("--seed", type=int, default=None, help="what chance starts from")
    return parser


def conduct(report: Report, run: Callable[[], None]) -> NoReturn:
    """Run a stage and end the process as a stage does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))  # so that everything is cleared up
    began, not_run = time.monotonic(), None
    try:
        run()
    except CannotRun as e:
        not_run = str(e)
        say(f"{report.stage}: cannot run here: {e}")
    for violation in report.violations[:20]:
        say(f"{report.stage}: VIOLATION: {violation}")
    print(report.line(time.monotonic() - began, not_run), flush=True)
    sys.exit(VIOLATED if report.violations else NOT_RUN if not_run else DONE)


def need(packages: dict[str, str]) -> None:
    """Make sure that tools are there, by the package that has each; root gets them installed, one process at a time."""

    def missing() -> list[str]:
        return sorted({package for tool, package in packages.items() if not shutil.which(tool, path=PATH)})

    if not missing():
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise CannotRun(f"missing packages: {', '.join(missing())}; installing them wants root and apt-get")
    with open(os.path.join(tempfile.gettempdir(), "dfq-test-apt.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if lacking := missing():
            say(f"installing {' '.join(lacking)}")
            command("apt-get", "update", "-qq")
            command("apt-get", "install", "-y", "-qq", "--no-install-recommends", *lacking)
    if missing():
        raise CannotRun(f"missing packages: {', '.join(missing())}")


def command(*words: str, timeout: float = 300) -> str:
    """Run a command that must succeed, and return what it said."""
    env = os.environ | {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=timeout, stdin=subprocess.DEVNULL)
    except FileNotFoundError as e:
        raise CannotRun(f"there is no {words[0]}") from e
    if done.returncode != 0:
        raise CannotRun(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def own_mounts() -> None:
    """See to it that what this process mounts is its own, and gone with it, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise CannotRun(f"no mounts of one's own: {os.strerror(ctypes.get_errno())}")


def die_with_parent() -> None:
    """In a child that was just forked: end when the stage does, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def scratch(name: str, megabytes: int) -> Path:
    """Return a new folder in memory, which is where disks that are written to all the time should lie."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
    if shutil.disk_usage(place).free < megabytes << 20:
        place = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=f"dfq-{name}-", dir=place))
