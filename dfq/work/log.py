"""What a worker says on stderr: lines for people, or one JSON object a line. Never a payload."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time

from dfq.codec import iso

MAX_ID = 80


class Log:
    """Writes whole lines, from any thread."""

    def __init__(self, style: str = "text") -> None:
        self._json = style == "json"
        self._lock = threading.Lock()

    def task(self, slot: int, task_id: str, outcome: str, seconds: float, attempt: int, note: str = "") -> None:
        """Tell how a task ended."""
        if self._json:
            self._write_json(
                slot=slot,
                task=printable(task_id),
                outcome=outcome,
                seconds=round(seconds, 3),
                attempt=attempt,
                note=note,
            )
        else:
            tail = f": {printable(note, 200)}" if note else ""
            self._write_text(f"[{slot}] {outcome} {printable(task_id)} in {seconds:.2f} s, attempt {attempt}{tail}")

    def event(self, message: str) -> None:
        """Tell something about the worker itself."""
        if self._json:
            self._write_json(event=message)
        else:
            self._write_text(printable(message, 2000))

    def _write_text(self, line: str) -> None:
        self._write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def _write_json(self, **fields: object) -> None:
        fields = {"time": iso(time.time()), **{k: v for k, v in fields.items() if v != ""}}
        self._write(json.dumps(fields) + "\n")

    def _write(self, line: str) -> None:
        # A worker whose terminal is gone goes on working, and so does one whose program put something odd there.
        with self._lock, contextlib.suppress(Exception):
            sys.stderr.write(line)
            sys.stderr.flush()


def printable(text: str, limit: int = MAX_ID) -> str:
    """Return text on one line without control characters, cut to a limit."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:limit])
    return text if len(text) <= limit else text[: limit - 1] + "…"
