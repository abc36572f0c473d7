"""What the tests of the command line share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]


@dataclass
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def object(self) -> dict[str, Any]:
        (only,) = self.objects
        return only


Run = Callable[..., Ran]


def environment(root: Path, **more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DFQ_", "COCLI_", "XDG_"))}
    return env | {"DFQ_ROOT": str(root), "PYTHONPATH": str(REPO), "HOME": str(root), "TERM": "xterm"} | more


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Return what a condition gives as soon as it is true; fail if it does not become so."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"did not happen within {seconds} s"
        time.sleep(0.02)
    return value
