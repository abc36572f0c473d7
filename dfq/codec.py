"""Payloads, results and files as JSON: the one place where text is made or taken apart."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dfq.errors import InvalidTask, PayloadTooLarge

MAX_DEPTH = 100


def encode_payload(payload: Any, limit: int, what: str = "payload") -> tuple[Any, str]:
    """Return (a JSON value, its encoding: json, text or base64) for what a user pushed.

    Raises InvalidTask for a kind that is not taken, PayloadTooLarge over the limit.
    """
    if isinstance(payload, str):
        try:
            size, value, encoding = len(payload.encode()), payload, "text"
        except UnicodeEncodeError as e:
            raise InvalidTask(f"{what}: text is not valid Unicode: {e.reason} at {e.start}") from None
    elif isinstance(payload, bytes | bytearray | memoryview):
        raw = bytes(payload)
        size, value, encoding = len(raw), base64.b64encode(raw).decode(), "base64"
    else:
        value, encoding = _jsonable(payload, what), "json"
        size = len(dumps(value, what))
    if size > limit:
        raise PayloadTooLarge(
            f"{what} has {size:,} bytes; the limit is {limit:,}: keep large data in a file and push "
            "its path, or raise max_payload"
        )
    return value, encoding


def encode_result(result: Any, limit: int) -> tuple[Any, str]:
    """Return (a JSON value, its encoding) for a result: what a payload may be, and any JSON value."""
    if result is None or isinstance(result, bool | int | float | list | tuple):
        if _too_deep(result):
            raise InvalidTask(f"result: nested deeper than {MAX_DEPTH} levels")
        size = len(dumps(result, "result"))
        if size > limit:
            raise PayloadTooLarge(f"result has {size:,} bytes; the limit is {limit:,} (max_payload)")
        return result, "json"
    return encode_payload(result, limit, "result")


def decode_payload(value: Any, encoding: Any, where: str) -> Any:
    """Return what a user pushed from its JSON value and encoding. Raises InvalidTask."""
    if encoding == "json":
        return value
    if encoding == "text" and isinstance(value, str):
        return value
    if encoding == "base64" and isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError as e:
            raise InvalidTask(f"{where}: field 'payload' is not base64: {e}") from None
    raise InvalidTask(
        f"{where}: field 'encoding' is {str(encoding)[:40]!r} for a payload of type {type(value).__name__}; "
        "it must be 'json', 'text' or 'base64'"
    )


def dumps(value: Any, what: str = "value") -> bytes:
    """Return a value as one line of JSON, without NaN, in UTF-8. Raises InvalidTask."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(", ", ": ")).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as e:
        raise InvalidTask(f"{what} cannot be written as JSON: {e}") from None


def loads(raw: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in a file's bytes. Raises InvalidTask that names the file and what is wrong."""
    if not raw.strip():
        raise InvalidTask(f"{where}: the file is empty")
    try:
        value = json.loads(raw.decode())
    except UnicodeDecodeError as e:
        raise InvalidTask(f"{where}: not UTF-8 at byte {e.start}") from None
    except json.JSONDecodeError as e:
        raise InvalidTask(f"{where}: not JSON: {e.msg} at line {e.lineno} column {e.colno}") from None
    except (RecursionError, ValueError) as e:
        raise InvalidTask(f"{where}: not JSON that can be read: {e}") from None
    if not isinstance(value, dict):
        raise InvalidTask(f"{where}: holds a JSON {type(value).__name__}, not an object")
    if _is_deep_tree(value, MAX_DEPTH + 1):  # the file itself is a level around what was pushed
        raise InvalidTask(f"{where}: nested deeper than {MAX_DEPTH} levels")
    return value


def iso(wall: float) -> str:
    """Return a wall-clock time as ISO 8601 in UTC, with microseconds."""
    return datetime.fromtimestamp(wall, UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_iso(text: Any) -> float | None:
    """Return the wall-clock time of an ISO 8601 text or of a number; None if it is neither."""
    try:
        if isinstance(text, int | float) and not isinstance(text, bool):
            return float(text)
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_last_id = (0, 0)
_id_lock = threading.Lock()


def new_id() -> str:
    """Return a new id that sorts by the time it was made, also among those of one millisecond."""
    global _last_id
    with _id_lock:
        now = time.time_ns() // 1_000_000
        last, low = _last_id
        # Within a process ids only grow, also when the clock is set back a little.
        now, low = (last, low + 1) if last - 60_000 < now <= last else (now, int.from_bytes(os.urandom(7)))
        _last_id = (now, low)
    return f"{now:012x}-{low:015x}"


def _forget_ids() -> None:
    # A child process that went on from its parent's last id would make the same ones.
    global _last_id, _id_lock
    _last_id, _id_lock = (0, 0), threading.Lock()


os.register_at_fork(after_in_child=_forget_ids)


def nonce() -> str:
    """Return a text that nobody else has."""
    return os.urandom(12).hex()


def _jsonable(payload: Any, what: str) -> Any:
    if isinstance(payload, dict):
        plain: Any = payload
    elif dataclasses.is_dataclass(payload) and not isinstance(payload, type):
        plain = dataclasses.asdict(payload)
    elif callable(dump := getattr(payload, "model_dump", None)) and not isinstance(payload, type):
        plain = dump(mode="json")
    elif isinstance(payload, Mapping):
        plain = dict(payload)
    else:
        raise InvalidTask(
            f"{what} is a {type(payload).__name__}: it must be a mapping, a dataclass, a pydantic model, str or bytes"
        )
    if any(not isinstance(key, str) for key in plain):
        raise InvalidTask(f"{what}: keys must be text, as they are in JSON")
    if _too_deep(plain):
        raise InvalidTask(f"{what}: nested deeper than {MAX_DEPTH} levels")
    return plain


def _is_deep_tree(value: Any, limit: int) -> bool:
    """Tell the same as _too_deep of what came out of a file: it holds nothing twice, and may be large."""
    above = [iter((value,))]  # one iterator a level, so the memory follows the depth and not the size
    while above:
        for child in above[-1]:
            if isinstance(child, dict | list) and child:
                if len(above) > limit:
                    return True
                above.append(iter(child.values() if isinstance(child, dict) else child))
                break
        else:
            above.pop()
    return False


def _too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    # Each container once a level: one that holds itself many times over would fill the memory before the limit.
    level = {id(value): value} if isinstance(value, dict | list | tuple) else {}
    for _ in range(limit):
        if not level:
            return False
        level = {
            id(child): child
            for item in level.values()
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list | tuple)
        }
    return any(len(item) for item in level.values())
