"""The id of a task as a file name, and back; and the shard it lies in.

One function each way, for readers and writers alike. ADR 012 is the specification.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from functools import cache, lru_cache
from hashlib import blake2b

from dfq.errors import ConfigError, InvalidTask
from dfq.values import shown

MAX_ID_BYTES = 4096
MAX_NAME_BYTES = 200  # leaves room for "~<generation>.lease" within the 255 of a file name
HEAD_BYTES = 160
LONGEST_CHAR = 12  # bytes of the longest character, escaped: a head is shorter than it may be by less than that

_PLAIN = re.compile(r"[A-Za-z0-9_=+,@:][A-Za-z0-9_.=+,@: -]{0,199}").fullmatch
# Paths of plain characters, which most ids are: a listing of 100,000 of them need not look at each character.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_=+,@:/][A-Za-z0-9_.=+,@: /-]*").fullmatch
_PLAIN_PATH_NAME = re.compile(r"(?:[A-Za-z0-9_=+,@:]|%2F)(?:[A-Za-z0-9_.=+,@: -]++|%2F)*+").fullmatch
_HASHED = re.compile(r"%h[0-9a-f]{32}\Z")
_TAIL = len("%h") + 32
_ESCAPE = re.compile(r"(?:%[0-9A-F]{2})+")
_QUEUE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}").fullmatch


def encode(task_id: str) -> str:
    """Return the file name (without suffix) of a task id; raise InvalidTask if it cannot have one."""
    if not isinstance(task_id, str):
        raise InvalidTask(f"a task id is text, not {type(task_id).__name__}")
    if _PLAIN(task_id):
        return task_id
    if _PLAIN_PATH(task_id) and len(name := task_id.replace("/", "%2F")) <= MAX_NAME_BYTES:
        return name
    if not task_id:
        raise InvalidTask("a task id cannot be empty")
    try:
        raw = task_id.encode()
    except UnicodeEncodeError as e:
        raise InvalidTask(f"task id {task_id[:40]!r} is not valid Unicode: {e.reason} at {e.start}") from None
    if len(raw) > MAX_ID_BYTES:
        raise InvalidTask(
            f"task id {task_id[:40]!r}… has {len(raw)} bytes; the limit is {MAX_ID_BYTES}: "
            "put the long part into the payload"
        )
    parts = [_escaped(c) if i == 0 and c in ".-" else _encode_char(c) for i, c in enumerate(task_id)]
    name = "".join(parts)
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return _head(parts) + "%h" + blake2b(raw, digest_size=16).hexdigest()


def decode(name: str) -> str | None:
    """Return the id that a file name stands for.

    None for a name that no id encodes to, and for the name of a long id: the id is then in the file.
    """
    if _PLAIN(name):
        return name
    if len(name) <= MAX_NAME_BYTES and _PLAIN_PATH_NAME(name):
        return name.replace("%2F", "/")
    if is_hashed(name):
        return None
    try:
        task_id = _ESCAPE.sub(lambda m: bytes.fromhex(m[0].replace("%", "")).decode(), name)
        return task_id if encode(task_id) == name else None
    except (UnicodeError, InvalidTask):
        return None


def is_hashed(name: str) -> bool:
    """Tell whether this is the name of an id that was too long for a file name."""
    if _HASHED.search(name) is None:
        return False
    head = name[:-_TAIL]
    # What comes before the hash is the beginning of a name like any other: a receipt may hold anything at all.
    return decode(head) is not None and HEAD_BYTES - LONGEST_CHAR < len(head.encode()) <= HEAD_BYTES


def is_name(name: str) -> bool:
    """Tell whether some id has this name."""
    return decode(name) is not None or is_hashed(name)


@lru_cache(1024)  # of one name, a claim asks a dozen times
def shard_of(name: str, shards: int) -> str:
    """Return the shard of a name: hex, as many digits as the highest shard has."""
    return f"{zlib.crc32(name.encode()) % shards:0{shard_width(shards)}x}"


@cache
def shard_width(shards: int) -> int:
    """Return how many hex digits a shard has in a queue of so many shards."""
    return len(f"{shards - 1:x}")


def check_queue_name(queue: str) -> str:
    """Return the name of a queue if it is fit to be a folder; raise ConfigError otherwise."""
    if not isinstance(queue, str) or not _QUEUE_NAME(queue):
        raise ConfigError(
            f"queue name {shown(queue)}: use 1 to 100 letters, digits, '_', '-' and '.', not starting with '-' or '.'"
        )
    return queue


def _encode_char(c: str) -> str:
    if c in "%/~" or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return _escaped(c)
    return c


def _escaped(c: str) -> str:
    return "".join(f"%{b:02X}" for b in c.encode())


def _head(parts: list[str]) -> str:
    head, size = [], 0
    for part in parts:
        size += len(part.encode())
        if size > HEAD_BYTES:
            break
        head.append(part)
    return "".join(head)
