"""The records that the slot log reads and writes: a task, a witness, a dead letter (ADR 012)."""

from __future__ import annotations

import base64
from typing import Any

from dfq.claim import Claim
from dfq.codec import decode_payload, dumps, iso, loads
from dfq.errors import InvalidTask
from dfq.lease import Slot
from dfq.names import encode
from dfq.ports import Clock, Machine
from dfq.tree import Entry, epoch_of, plain


def witness_of(
    claim: Claim,
    machine: Machine,
    clock: Clock,
    state: str = "done",
    result: Any = None,
    encoding: str = "json",
) -> dict[str, Any]:
    """Return the witness of a claim that is being completed."""
    return {
        "task_id": claim.task["id"] or plain(claim.entry.name),
        "state": state,
        "worker_id": machine.worker_id,
        "host": machine.host,
        "attempt": claim.attempt,
        "generation": claim.generation,
        "token": claim.token,
        "epoch": epoch_of(claim.entry.name),
        "created_at": claim.task.get("created_at"),
        "claimed_at": claim.record.get("claimed_at"),  # a lease of another writer may not say
        "completed_at": iso(clock.wall()),
        "duration_s": round(clock.elapsed() - claim.claimed_at, 6),
        "result": result,
        "result_encoding": encoding,
        "task_nonce": claim.task.get("nonce"),
    }


def read_task(raw: bytes, entry: Entry, limit: int) -> dict[str, Any]:
    """Return a task from its file's bytes. Raises InvalidTask that names the file and the field."""
    if len(raw) > limit:
        raise InvalidTask(f"{entry.path}: the file has over {limit:,} bytes (the limit follows from max_payload)")
    task = loads(raw, entry.path)
    task_id = task.get("id")
    if not isinstance(task_id, str):
        raise InvalidTask(f"{entry.path}: field 'id' is missing or no text")
    try:
        right = encode(task_id) == plain(entry.name)
    except InvalidTask as e:
        raise InvalidTask(f"{entry.path}: field 'id': {e}") from None
    if not right:
        raise InvalidTask(f"{entry.path}: field 'id' is {task_id[:60]!r}, which belongs into another file")
    if "payload" not in task:
        raise InvalidTask(f"{entry.path}: field 'payload' is missing")
    task.setdefault("encoding", "json")
    decode_payload(task["payload"], task["encoding"], entry.path)
    dumps(task, entry.path)  # NaN, or half a character: it could be run, but never be acked or buried
    return task


def read_tile(raw: bytes, entry: Entry, limit: int) -> dict[str, Any]:
    """Return a file of an index as a task: its bytes are the payload. Raises InvalidTask."""
    if len(raw) > limit:
        raise InvalidTask(f"{entry.path}: the file has over {limit:,} bytes (max_payload)")
    return {"id": entry.path.partition("/")[2], "payload": base64.b64encode(raw).decode(), "encoding": "base64"}


def letter_of(
    task: dict[str, Any],
    entry: Entry,
    top: Slot,
    reason: str,
    errors: list[dict[str, Any]],
    machine: Machine,
    clock: Clock,
) -> dict[str, Any]:
    """Return the dead letter of a task whose last slot is `top`."""
    return {
        "task_id": task["id"] or plain(entry.name),
        "state": "dead",
        "payload": task["payload"],
        "encoding": task["encoding"],
        "priority": entry.lane,
        "epoch": epoch_of(entry.name),
        "created_at": task.get("created_at"),
        "attempts": top.attempt,
        "generation": top.generation + 1,
        "failed_at": iso(clock.wall()),
        "buried_by": machine.worker_id,
        "reason": reason,
        "errors": errors,
    }


def errors_of(slot: Slot) -> list[dict[str, Any]]:
    """Return what went wrong in a generation, as a dead letter lists it; of an earlier death, all its errors."""
    record = slot.record
    if slot.state == "dead":
        earlier = record.get("errors")
        return earlier if isinstance(earlier, list) else []
    if slot.state == "released" and slot.error is None:
        return []
    lost = "the worker died or lost its lease" if slot.state == "leased" else "the lease was unreadable"
    return [
        {
            "generation": slot.generation,
            "attempt": slot.attempt,
            "worker_id": record.get("worker_id"),
            "at": record.get("released_at") or record.get("heartbeat_timestamp"),
            "error": slot.error if slot.state == "released" else lost,
        }
    ]


def token_of(name: str, generation: int) -> int:
    """Return the fencing token: it grows with each hand-over, and with each epoch."""
    return (epoch_of(name) << 32) + generation


def is_stub(witness: Slot) -> bool:
    """Tell whether a witness is only there to guard its names, and not as a proof."""
    return witness.record.get("stub") is True or witness.record.get("state") in ("cancelled", "expired")
