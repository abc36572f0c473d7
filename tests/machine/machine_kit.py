"""What every stage in this folder shares: its contract, and disks and clocks of its own.

    python tests/machine/<stage>.py --seconds N [--seed S] [--sabotage NAME] [--only NAME,NAME]

A stage works for about N seconds. Its last line on stdout is one JSON object; it exits with 0 if it found no
violation, 1 if it found one, 3 if it could not run here. With a sabotage, violations are what it is to find.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
REPO = HERE.parent.parent
CACHE = REPO / ".cache"
for _place in (REPO, HERE, HERE.parent / "crash", HERE.parent / "keeping", HERE.parent / "node"):
    if str(_place) not in sys.path:
        sys.path.insert(0, str(_place))

import node_kit  # noqa: E402 - found where the line above looks
from _pytest.outcomes import OutcomeException  # noqa: E402

SHOWN = 20  # violations that are printed in full
FAKETIME = "libfaketime==3.0.1"  # Debian's own breaks time.sleep


class NotRun(Exception):
    """The stage cannot run on this machine."""


@dataclass
class Report:
    """What a stage found and measured."""

    stage: str
    seconds: float
    seed: int
    sabotage: str | None = None
    only: frozenset[str] = frozenset()  # parts of the stage, if it has some; all if none is named
    violations: list[str] = field(default_factory=list)
    figures: dict[str, float | int | str] = field(default_factory=dict)
    not_covered: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def violation(self, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(what)
        if len(self.violations) <= SHOWN:
            say(f"{self.stage}: VIOLATION: {what}")

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.begun + self.seconds - time.monotonic()

    def add(self, figure: str, number: int = 1) -> None:
        """Count something."""
        self.figures[figure] = int(self.figures.get(figure, 0)) + number

    def line(self, not_run: str | None = None) -> str:
        """Return the last line of a stage."""
        return json.dumps(
            {
                "stage": self.stage,
                "violations": len(self.violations),
                "seconds": round(time.monotonic() - self.begun, 1),
                "figures": self.figures,
                "not_run": not_run,
                "not_covered": self.not_covered,
            }
        )


def say(text: str) -> None:
    """Tell whoever watches."""
    print(text, file=sys.stderr, flush=True)


def main(stage: str, run: Callable[[Report, Path], None], argv: list[str] | None = None) -> NoReturn:
    """Run a stage as a program. `run` gets a folder that is kept if there were violations."""
    parser = argparse.ArgumentParser(description=(run.__doc__ or stage).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--sabotage", default=None, help="break the code under test: the stage must notice")
    parser.add_argument("--only", default="", help="some parts of the stage, by name, with commas between them")
    given = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(2**31) if given.seed is None else given.seed
    only = frozenset(name for name in given.only.split(",") if name)
    report = Report(stage, given.seconds, seed, given.sabotage, only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is cleared up
    say(f"{stage}: {given.seconds:g} s, seed {seed}{f', sabotage {given.sabotage}' if given.sabotage else ''}")
    try:
        perform(report, run)
    except NotRun as e:
        say(f"{stage}: NOT RUN: {e}")
        print(report.line(str(e)), flush=True)
        sys.exit(3)
    print(report.line(), flush=True)
    sys.exit(1 if report.violations else 0)


def perform(report: Report, run: Callable[[Report, Path], None]) -> Report:
    """Run a stage in a folder of its own; what it leaves is kept if there were violations."""
    folder = Path(tempfile.mkdtemp(prefix=f"dfq-{report.stage}-"))
    folder.chmod(0o755)
    try:
        with outcomes():
            run(report, folder)
    finally:
        kept = report.violations and not report.sabotage
        if kept:
            say(f"{report.stage}: evidence is in {folder}; again with --seed {report.seed}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return report


@contextlib.contextmanager
def outcomes() -> Iterator[None]:
    """Turn what the kits of the tests say to pytest (skip, fail) into NotRun."""
    try:
        yield
    except OutcomeException as e:
        raise NotRun(str(e.msg)) from e


@contextlib.contextmanager
def ext4(folder: Path, *, mebibytes: int = 128, inodes: int = 16384) -> Iterator[tuple[Path, str]]:
    """A real ext4 in a file, and what to call it; the disk that there is where nothing can be mounted.

    The file is in memory where there is some: a kill does not depend on how slow the device is.
    """
    make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-N", str(inodes)]
    node_kit.IMAGES["our ext4"] = (make, mebibytes * node_kit.MIB, "e2fsprogs")
    if os.geteuid() != 0:
        yield folder, "the disk of the folder for temporary files: mounting an ext4 wants root"
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    place = Path(tempfile.mkdtemp(dir=memory, prefix="dfq-ext4-"))
    try:
        with node_kit.mounted("our ext4", place) as point:
            yield point, f"ext4 in a loop device{' in memory' if memory else ''}"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def faketime_library() -> Path:
    """Return the library that lies about the time of day; it is installed when first needed."""
    place = CACHE / "libfaketime-3.0.1"
    found = list(place.rglob("libfaketime.so.1"))
    if not found:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*command, "--target", str(place), FAKETIME], capture_output=True, text=True, timeout=240)
        found = list(place.rglob("libfaketime.so.1"))
        if not found:
            raise NotRun(f"pip cannot install {FAKETIME}: {done.stderr.strip()[-300:]}")
    return found[0]


class FakeClock:
    """A wall clock that can be set while processes run under it. Elapsed time is left alone."""

    def __init__(self, folder: Path) -> None:
        self._library = faketime_library()
        self._file = folder / "faketime"
        self.offset = 0.0
        self.jump(0.0)

    def jump(self, seconds: float) -> None:
        """Set the clock to so much before or after the real time."""
        self.offset = seconds
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{seconds:+.3f}\n")
        beside.rename(self._file)

    def environment(self) -> dict[str, str]:
        """Return what a process needs in its environment to live under this clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def forget_faketime(pids: set[int]) -> None:
    """Remove what the library leaves in shared memory of processes that were killed."""
    for pid in pids:
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"/dev/shm/{name}")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process under test: this checkout, and no settings from outside."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DFQ_", "COCLI_", "XDG_", "FAKETIME"))}
    paths = [str(HERE / "sabotage"), str(REPO), str(HERE), str(HERE.parent / "crash")]
    return env | {"PYTHONPATH": os.pathsep.join(paths), "TERM": "dumb"} | more


def percentile(values: list[float], part: float) -> float:
    """Return the value that this part of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1))]


def ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
