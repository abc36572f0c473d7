"""Runs a stage as a process of its own and reads its line of figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
NOT_RUN = 3


def stage(script: str, *args: str) -> tuple[int, dict[str, Any]]:
    """Return how a stage ended and what it reported. One that cannot run here fails, unless we are not root."""
    env = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    words = [sys.executable, str(HERE / script), *args]
    ran = subprocess.run(words, capture_output=True, text=True, env=env, timeout=280)
    sys.stderr.write(ran.stderr)
    assert ran.stdout, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    if ran.returncode == NOT_RUN:
        if os.geteuid() != 0:
            pytest.skip(f"NOT RUN: {report['not_run']}")
        pytest.fail(f"NOT RUN: {report['not_run']}")
    return ran.returncode, report
