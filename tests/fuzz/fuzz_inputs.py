"""Inputs: valid files that were damaged in ways that happen, and ways that somebody might think of."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_targets import folder_of
from hypothesis import strategies as st

ALIKE = 6  # inputs with the same damages at other places
CORPUS = Path(__file__).resolve().parent / "corpus"

#: Pieces of text that have broken parsers before.
TOKENS: list[bytes] = [
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", b'"', b"\\", b"{", b"[", b"}", b"]", b",", b":",
    b"NaN", b"-Infinity", b"1e999", b"-0.0", b"9" * 25, b"9" * 4400, b"0x" + b"f" * 4000, b"true", b"null",
    b"~", b"~e1",
    b"~2", b"%2F", b"%", b"%h", b"%h" + b"0123456789abcdef" * 2, b"..", b"/../", b"../" * 8, b"\n", b"\r\n",
    b"\t", b" ",
    "٣".encode(), "\u2028".encode(), "😀".encode(), b"[" * 120, b"[" * 5000, b'{"a":' * 120, b"a." * 3000, b"=",
    b"'''",
    b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"1e308", b"-1", b"2147483648",
    b"18446744073709551616",
]  # fmt: skip

#: Values that a field may have instead of its own.
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**25, 10**400, -(10**400), 2**31, 2**63, 1e308, float("nan"),
    float("inf"), "", "x",
    "\ud800", "\0", "a" * 5000, [], [[]], {}, {"a": {}}, ["leased"], "done", "dead", "released", "cancelled",
    "base64",
    "text", "../../x", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", [1] * 300,
]  # fmt: skip


@cache
def seeds(target: str) -> list[bytes]:
    """Return the valid inputs of a target."""
    found = [file.read_bytes() for file in sorted((CORPUS / folder_of(target)).iterdir())]
    assert found, f"no corpus for {target}: run tests/fuzz/make_corpus.py"
    return found


def inputs(target: str) -> st.SearchStrategy[list[bytes]]:
    """Return a strategy for one target: some inputs at a time, since drawing takes longer than trying."""
    known, names = seeds(target), sorted(DAMAGES)
    # By numbers, not by their content: hypothesis spells out what it draws, which takes longer than trying it.
    damage = st.tuples(st.integers(0, len(names) - 1), st.integers(0, 2**32))
    damages = st.tuples(st.integers(0, len(known) - 1), st.lists(damage, min_size=1, max_size=4))

    def alike(drawn: tuple[int, list[tuple[int, int]]]) -> list[bytes]:
        which, done = drawn
        return [damaged_by(known[which], [(names[n], number + k) for n, number in done]) for k in range(ALIKE)]

    made = _JSON.map(lambda value: [json.dumps(value).encode()])
    raw = st.one_of(st.binary(max_size=300), st.text(max_size=80).map(_utf8)).map(lambda data: [data])
    return st.one_of(damages.map(alike), damages.map(alike), damages.map(alike), made, raw)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
_KEYS = st.one_of(st.text(max_size=8), st.sampled_from(["id", "payload", "encoding", "state", "attempt", "errors"]))
_JSON = st.recursive(
    _LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_KEYS, inner, max_size=5))
)


def damaged_by(data: bytes, damages: list[tuple[str, int]]) -> bytes:
    """Return data with some damages done to it, one after the other."""
    for name, number in damages:
        data = DAMAGES[name](data, random.Random(number))
    return data


def _flip(data: bytes, chance: random.Random) -> bytes:
    if not data:
        return b"\0"
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def _cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randint(0, len(data))]


def _take_out(data: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(data))
    return data[:at] + data[at + chance.randint(1, 40) :]


def _put_in(data: bytes, chance: random.Random) -> bytes:
    at, token = chance.randint(0, len(data)), chance.choice(TOKENS)
    return data[:at] + token + data[at:]


def _before(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(TOKENS) + data


def _twice(data: bytes, chance: random.Random) -> bytes:
    return data * chance.randint(2, 4)


def _zeros(data: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(data))  # what a power cut leaves of the end of a file
    return data[:at] + b"\0" * (len(data) - at)


def _large(data: bytes, chance: random.Random) -> bytes:
    if chance.random() < 0.7:
        return _put_in(data, chance)  # large ones are slow to try
    piece = chance.choice(
        [b"[],", b"{},", b'"",', b"1,", b"[[]],", b'{"a":1},', b"\\u0000", b"\xc3\xa9", b"x", b"a.", b"%2F"]
    )
    return (b'{"id": "bad", "payload": [' if chance.random() < 0.7 else data) + piece * (40_000 // len(piece)) + b"0]}"


def _field(change: Callable[[dict[str, Any], str, random.Random], bytes | None]) -> Callable[..., bytes]:
    """Return a damage to one field of a JSON object; what is none is damaged by a token instead."""

    def damage(data: bytes, chance: random.Random) -> bytes:
        try:
            record = json.loads(data)
        except (ValueError, RecursionError):
            return _put_in(data, chance)
        if not isinstance(record, dict) or not record:
            return _put_in(data, chance)
        raw = change(record, chance.choice(sorted(record)), chance)
        return json.dumps(record).encode() if raw is None else raw

    return damage


def _drop(record: dict[str, Any], key: str, chance: random.Random) -> None:
    del record[key]


def _odd(record: dict[str, Any], key: str, chance: random.Random) -> None:
    record[key] = chance.choice(ODD)


def _exchange(record: dict[str, Any], key: str, chance: random.Random) -> None:
    other = chance.choice(sorted(record))
    record[key], record[other] = record[other], record[key]


def _deepen(record: dict[str, Any], key: str, chance: random.Random) -> bytes:
    levels = chance.choice([50, 98, 99, 100, 101, 102, 150, 400])
    inner = b"[" * levels + b"]" * levels
    del record[key]
    return (
        json.dumps(record).encode()[:-1] + (b", " if record else b"") + json.dumps(key).encode() + b": " + inner + b"}"
    )


def _double(record: dict[str, Any], key: str, chance: random.Random) -> bytes:
    odd = json.dumps(chance.choice(ODD)).encode()
    return json.dumps(record).encode()[:-1] + b", " + json.dumps(key).encode() + b": " + odd + b"}"


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a bit flipped": _flip,
    "cut off": _cut,
    "a piece missing": _take_out,
    "a token put in": _put_in,
    "a token before it": _before,
    "more than once": _twice,
    "zeros at the end": _zeros,
    "large": _large,
    "a field dropped": _field(_drop),
    "a field of another kind": _field(_odd),
    "two fields exchanged": _field(_exchange),
    "a field nested deep": _field(_deepen),
    "a field twice": _field(_double),
}
