"""A slot of a task's log as a record: what a lease file says, and how it is written."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from dfq.codec import iso, loads
from dfq.errors import InvalidTask
from dfq.ports import Clock, Machine

LEASE_BYTES = 1024  # a heartbeat rewrites exactly this much, in place
RELEASE_BYTES = 4096  # a release may carry an error
READ_LIMIT = 64 * 1024

SlotState = Literal["leased", "released", "done", "dead", "torn"]


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a task's log, as it was read."""

    name: str
    generation: int
    state: SlotState
    record: dict[str, Any]
    raw: bytes

    @property
    def attempt(self) -> int:
        return _whole(self.record.get("attempts" if self.state == "dead" else "attempt"))

    @property
    def nonce(self) -> str:
        return str(self.record.get("nonce", ""))

    @property
    def ttl(self) -> float | None:
        return number(self.record.get("ttl_s"))

    @property
    def deadline(self) -> float | None:
        return number(self.record.get("deadline_boottime"))

    @property
    def error(self) -> str | None:
        error = self.record.get("error")
        return error if isinstance(error, str) else None


def parse(name: str, generation: int, raw: bytes) -> Slot:
    """Return the slot that a lease file's bytes say; state "torn" for whatever cannot be read."""
    try:
        record = loads(raw, "lease")
    except InvalidTask:
        return Slot(name, generation, "torn", {}, raw)
    state = record.get("state", "leased")
    if state in ("done", "cancelled", "expired"):
        return Slot(name, generation, "done", record, raw)
    if state in ("leased", "released", "dead"):
        return Slot(name, generation, state, record, raw)
    return Slot(name, generation, "torn", record, raw)


def lease_record(
    task_id: str,
    *,
    generation: int,
    attempt: int,
    token: int,
    nonce: str,
    ttl: float,
    liveness: str,
    machine: Machine,
    clock: Clock,
) -> dict[str, Any]:
    """Return a new lease."""
    wall = clock.wall()
    return {
        "task_id": task_id if len(task_id) <= 120 else task_id[:120] + "…",
        "state": "leased",
        "worker_id": machine.worker_id,
        "generation": generation,
        "attempt": attempt,
        "token": token,
        "nonce": nonce,
        "host": machine.host,
        "boot_id": machine.boot_id,
        "pid": machine.pid,
        "liveness": liveness,
        "claimed_at": iso(wall),
        "heartbeat_timestamp": iso(wall),
        "expiry_timestamp": iso(wall + ttl),
        "ttl_s": ttl,
        "deadline_boottime": _not_after(clock.elapsed() + ttl),
        "beat": 0,
    }


def renewed(record: dict[str, Any], ttl: float, clock: Clock) -> dict[str, Any]:
    """Return a lease with its time started anew."""
    wall = clock.wall()
    return record | {
        "heartbeat_timestamp": iso(wall),
        "expiry_timestamp": iso(wall + ttl),
        "ttl_s": ttl,
        "deadline_boottime": _not_after(clock.elapsed() + ttl),
        "beat": _whole(record.get("beat")) + 1,
    }


def released(
    record: dict[str, Any], *, attempt: int, delay: float, error: str | None, machine: Machine, clock: Clock
) -> dict[str, Any]:
    """Return a lease that was given back, due after `delay` seconds."""
    wall = clock.wall()
    return record | {
        "state": "released",
        "attempt": attempt,
        "boot_id": machine.boot_id,  # of the one who released: the deadline is by that clock
        "released_at": iso(wall),
        "due_at": iso(wall + delay),
        "delay_s": delay,
        "deadline_boottime": (not_before if delay > 0 else _not_after)(clock.elapsed() + delay),
        "error": error,
    }


def lease_bytes(record: dict[str, Any]) -> bytes:
    """Return a lease as padded JSON. An error that is too long is cut in the middle; its end says most."""
    limit = RELEASE_BYTES if record.get("state") == "released" else LEASE_BYTES
    raw = _dump(record)
    error = record.get("error")
    keep = len(error) if isinstance(error, str) else 0
    while len(raw) >= limit and isinstance(error, str) and keep > 0:
        keep = max(0, keep - max(16, (len(raw) - limit) // 2))
        head = keep // 4
        raw = _dump(record | {"error": f"{error[:head]} […] {error[len(error) - (keep - head) :]}"})
    if len(raw) >= limit:
        raw = _dump(record | {key: str(record[key])[:20] for key in ("task_id", "host") if key in record})
    return raw.ljust(LEASE_BYTES - 1) + b"\n"


def _dump(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(", ", ": ")).encode(errors="replace")


def not_before(elapsed: float) -> float:
    """Return the deadline of a delay as it is written, in milliseconds: rounded, but never to before it."""
    return math.ceil(elapsed * 1000) / 1000


def _not_after(elapsed: float) -> float:
    # Nobody may read back a longer lease than was asked for.
    return math.floor(elapsed * 1000) / 1000


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0


def number(value: Any) -> float | None:
    """Return a number of seconds that some writer left; None if it is none, or beyond all measure."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    return None
