"""Runs a stage as a program, as whoever proves everything does, and reads its last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def stage(name: str, seconds: float, *options: str, sabotage: str | None = None) -> dict[str, Any]:
    """Return what a stage reports. Without a sabotage it must find nothing, with one it must find something."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--seconds", f"{seconds:g}", *options]
    if sabotage is not None:
        command += ["--sabotage", sabotage]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280)
    print(ran.stderr[-8000:], ran.stdout, sep="\n")
    if ran.returncode == 3:
        pytest.fail(f"NOT RUN: {json.loads(ran.stdout.splitlines()[-1])['not_run']}")
    report: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert report["stage"] == name
    assert ran.returncode == (1 if report["violations"] else 0)
    assert bool(report["violations"]) == (sabotage is not None), f"{report}\n{ran.stderr[-4000:]}"
    return report
