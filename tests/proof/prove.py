"""Run every stage of the proof, each in a process of its own, and write one page of figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "PROOF.md"
GRACE = 900.0  # seconds that a stage may take longer than it was given, before it counts as hanging


@dataclass(frozen=True)
class Stage:
    """A script that tries to break a promise for so long, and prints figures."""

    name: str
    minutes: float  # of an hour
    command: tuple[str, ...]
    about: str
    counted: str = ""  # the figure whose rate is of interest


SIMULATION = "tests/simulation/stage.py"
STAGES = [
    Stage(
        "takeover",
        1,
        ("tests/machine/takeover.py",),
        "How long a task waits whose worker got kill -9, while another worker idles. Lease 600 s, real processes.",
        "kills",
    ),
    Stage(
        "schedules",
        25,
        (SIMULATION, "schedules"),
        "The production code on a simulated disk and clock, switching processes at any call, at random: with crashes, "
        "calls that fail, replies that are lost, listings that lag, and wall clocks that jump.",
        "random schedules",
    ),
    Stage(
        "cuts",
        6,
        (SIMULATION, "cuts"),
        "The same, and at any moment the power goes: any subset of what was not synced is left, contents torn.",
        "power-cut images",
    ),
    Stage(
        "search",
        4,
        (SIMULATION, "search"),
        "The same, but every schedule there is within a bound of preemptions and crashes.",
        "schedules",
    ),
    Stage(
        "sabotage",
        5,
        (SIMULATION, "sabotage"),
        "Does the simulator notice when the code is wrong? One line is changed at a time, and every sync is left out "
        "in turn. Not one may go unnoticed.",
    ),
    Stage(
        "calls",
        5,
        ("tests/machine/calls.py",),
        "SIGKILL at every system call of every operation, on a real ext4; then a fresh worker has to repair it.",
    ),
    Stage(
        "power",
        3,
        ("tests/machine/uml/power.py",),
        "Power cuts on a real block device with a real ext4: every write is recorded, and any prefix or subset of "
        "those not flushed is mounted and looked at.",
        "crash images mounted",
    ),
    Stage("nfs", 1.5, ("tests/machine/uml/nfs.py",), "Two machines share a queue over NFS 4.2 with a kernel server."),
    Stage(
        "soak",
        10,
        ("tests/machine/soak.py",),
        "Real workers under kill -9, SIGSTOP for longer than the lease, a full disk and jumping clocks, all at once.",
        "kill -9",
    ),
    Stage("clocks", 1, ("tests/machine/clocks.py",), "Live wall clocks that jump by hours and years."),
    Stage("fuzz", 2, ("tests/fuzz/fuzz.py",), "Every parser, and whole queues with files in them that others wrote."),
]


def run(stage: Stage, seconds: float, seed: int) -> dict[str, Any]:
    """Return the report of a stage. One that says nothing sensible has failed."""
    command = [sys.executable, *stage.command, "--seconds", f"{seconds:.0f}", "--seed", str(seed)]
    print(f"\n== {stage.name}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=seconds + GRACE, check=False
        )
    except subprocess.TimeoutExpired:
        return broken(stage, f"it did not come to an end within {seconds + GRACE:.0f} s", began)
    try:
        report = json.loads(ended.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return broken(stage, f"it ended with code {ended.returncode}, and without figures", began)
    if ended.returncode not in (0, 1, 3) or (ended.returncode == 0) != (
        not report["violations"] and not report["not_run"]
    ):
        return broken(stage, f"its code {ended.returncode} does not fit its figures: {report}", began)
    return dict(report)


def broken(stage: Stage, why: str, began: float) -> dict[str, Any]:
    seconds = round(time.monotonic() - began, 1)
    figures = {"it failed": why}
    return {"stage": stage.name, "violations": 1, "seconds": seconds, "figures": figures, "not_run": None}


def rows(stage: Stage, report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return (figure, value, per minute) of a report."""
    found = [("violations", str(report["violations"]), "")]
    if report.get("not_run"):
        return [("not run", str(report["not_run"]), "")]
    for what, value in report["figures"].items():
        rate = ""
        if what == stage.counted and isinstance(value, int | float):
            rate = f"{value / max(report['seconds'], 1) * 60:,.0f}"
        found.append((what, shown(value), rate))
    return found


def shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "/").replace("\n", " ")
    return f"{value:,}"


def page(reports: list[tuple[Stage, dict[str, Any]]], minutes: float) -> str:
    """Return the page, as Markdown."""
    lines = [
        "# What was tried, and what came of it",
        "",
        "Written by `scripts/prove`, which runs the stages below against this checkout. Run it yourself; more minutes",
        "look further.",
        "",
        f"- commit {commit()}",
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `scripts/prove --minutes {minutes:g}`",
        f"- {machine()}",
        "",
        "| stage | figure | value | a minute |",
        "|---|---|---:|---:|",
    ]
    for stage, report in reports:
        name = f"**{stage.name}** ({report['seconds']:,.0f} s)"
        for what, value, rate in rows(stage, report):
            lines.append(f"| {name} | {what} | {value} | {rate} |")
            name = ""
    lines += ["", "## The stages", ""]
    lines += [f"- **{stage.name}**: {stage.about}" for stage, _ in reports]
    lines += ["", "## Not covered", ""]
    left_out = [(stage.name, text) for stage, report in reports for text in report.get("not_covered") or []]
    lines += [f"- {name}: {text}" for name, text in left_out]
    lines += [
        "- A real Raspberry Pi, its SD card, and arm: all of this ran on the machine named above.",
        "- Several nodes with disks of their own.",
    ]
    return "\n".join(lines) + "\n"


def commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout

    name = git("rev-parse", "--short=12", "HEAD").strip() or "unknown (no git here)"
    changed = git("status", "--porcelain", "--", "dfq", "tests/simulation", "tests/machine", "tests/fuzz").strip()
    return f"{name}, with changes" if changed else name


def machine() -> str:
    release = f"{platform.system()} {platform.release().split('-')[0]}, {platform.machine()}"
    return f"{os.cpu_count()} cores, {release}, Python {platform.python_version()}"


def main() -> int:
    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(description=__doc__, epilog=f"stages: {', '.join(names)}")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="what to run; all, if none is named")
    parser.add_argument("--minutes", type=float, default=10, help="for all of it; some stages take what they take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write the figures")
    args = parser.parse_args()
    if unknown := set(args.stages) - set(names):
        parser.error(f"there is no stage {', '.join(sorted(unknown))}: use {', '.join(names)}")
    chosen = [stage for stage in STAGES if not args.stages or stage.name in args.stages]
    share = args.minutes * 60 / sum(stage.minutes for stage in chosen)
    reports = [(stage, run(stage, stage.minutes * share, args.seed)) for stage in chosen]
    args.page.parent.mkdir(parents=True, exist_ok=True)
    text = page(reports, args.minutes)
    args.page.write_text(text)
    print(text[text.index("- commit") : text.index("## The stages")])
    print(f"written to {args.page}", file=sys.stderr)
    return 1 if any(report["violations"] or report.get("not_run") for _, report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
