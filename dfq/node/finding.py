"""One thing that was found out about this node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfq.values import KIB, MIB

Level = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do about it (nothing, if it is well)."""

    name: str
    level: Level
    found: str
    fix: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warn(name: str, found: str, fix: str) -> Finding:
    return Finding(name, "warn", found, fix)


def fail(name: str, found: str, fix: str) -> Finding:
    return Finding(name, "fail", found, fix)


def unknown(name: str, why: str) -> Finding:
    return Finding(name, "unknown", f"not known: {why}")


def graded(name: str, amount: float, found: str, *, low: float, too_low: float, fix: str) -> Finding:
    """Return a finding about an amount of which there can be too little."""
    level: Level = "fail" if amount < too_low else "warn" if amount < low else "ok"
    return Finding(name, level, found, "" if level == "ok" else fix)


def size(amount: float) -> str:
    """Return a number of bytes as a person would say it."""
    for unit, factor in (("GiB", 1024 * MIB), ("MiB", MIB), ("KiB", KIB)):
        if amount >= factor:
            return f"{amount / factor:.1f} {unit}"
    return f"{amount:.0f} bytes"
