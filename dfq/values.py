"""The values that settings may have: each function here makes one from an argument or a text.

A function that is not a parser itself returns one. A parser raises ValueError with what it expected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DAY = 86_400.0
KIB = 1024
MIB = 1024 * KIB
SHOWN = 200  # characters of a value that an error shows

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-z]*)\s*").fullmatch
_TIME_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}
_SIZE_UNITS = {"": 1, "b": 1, "kb": 1000, "kib": KIB, "mb": 1000**2, "mib": MIB}


def shown(value: Any) -> str:
    """Return a value as an error names it: on one line, cut, and never an error itself.

    A number of 5,000 digits cannot be written as text, a value that is nested deep cannot either.
    """
    try:
        text = repr(value)
    except Exception as e:  # noqa: BLE001 - a __repr__ of the user's own may raise anything
        text = f"<{type(value).__name__} that cannot be shown: {type(e).__name__}>"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def amount(value: Any, units: Mapping[str, float], expected: str) -> float:
    """Return a number, or a text with a number and one of these units, in the unit of 1."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _NUMBER_AND_UNIT(value) if isinstance(value, str) else None
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"expected {expected}")
    return float(match[1]) * unit


def seconds(low: float, high: float) -> Callable[[Any], float]:
    """Return a parser of times."""
    expected = f"a time from {_span(low)} to {_span(high)}, in seconds or as in '15 m' (ms, s, m, h, d, w)"

    def parse(value: Any) -> float:
        seconds = amount(value, _TIME_UNITS, expected)
        if not low <= seconds <= high:
            raise ValueError(f"expected {expected}")
        return seconds

    return parse


def _span(seconds: float) -> str:
    if seconds >= DAY and seconds % DAY == 0:
        return f"{seconds / DAY:g} d"
    return f"{seconds:g} s"


def size(low: int, high: int) -> Callable[[Any], int]:
    """Return a parser of sizes in bytes."""
    expected = f"a size from {low} byte to {high // MIB} MiB, in bytes or as in '256 KiB'"

    def parse(value: Any) -> int:
        size = amount(value, _SIZE_UNITS, expected)
        if not low <= size <= high or size != int(size):
            raise ValueError(f"expected {expected}")
        return int(size)

    return parse


def whole(low: int, high: int) -> Callable[[Any], int]:
    """Return a parser of whole numbers."""
    expected = f"a whole number from {low:,} to {high:,}"

    def parse(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,20}\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"expected {expected}")
        return value

    return parse


def choice(*known: str) -> Callable[[Any], str]:
    """Return a parser of one of these words."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or value.strip() not in known:
            raise ValueError(f"expected one of {', '.join(known)}")
        return value.strip()

    return parse


def yes_or_no(value: Any) -> bool:
    """Return a bool from a bool or its text."""
    if isinstance(value, bool):
        return value
    answer = value.strip().lower() if isinstance(value, str) else ""
    if answer in ("true", "yes", "on", "1"):
        return True
    if answer in ("false", "no", "off", "0"):
        return False
    raise ValueError("expected true or false (also yes, no, on, off, 1, 0)")


def path(value: Any) -> Path:
    """Return a path, with ~ expanded."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError("expected a path")
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError("expected a path that is not empty and has no NUL in it")
    return Path(text).expanduser()


def url(*schemes: str) -> Callable[[Any], str]:
    """Return a parser of addresses with one of these schemes."""
    expected = "expected an address that starts with " + " or ".join(f"{s}://" for s in schemes)

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not re.match(rf"({'|'.join(schemes)})://\S", value.strip()):
            raise ValueError(expected)
        return value.strip()

    return parse
