"""Payloads, results and files as JSON."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfq import codec
from dfq.errors import InvalidTask, PayloadTooLarge

LIMIT = 256 * 1024
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON, max_size=5) | TEXT | st.binary())
def test_a_payload_survives_being_written_and_read(payload: Any) -> None:
    value, encoding = codec.encode_payload(payload, LIMIT)
    record = codec.loads(codec.dumps({"payload": value, "encoding": encoding}), "here")
    assert codec.decode_payload(record["payload"], record["encoding"], "here") == payload


@given(JSON | st.binary())
def test_a_result_survives_being_written_and_read(result: Any) -> None:
    value, encoding = codec.encode_result(result, LIMIT)
    record = codec.loads(codec.dumps({"r": value, "e": encoding}), "here")
    assert codec.decode_payload(record["r"], record["e"], "here") == result


@pytest.mark.parametrize(
    ("payload", "encoding"), [({}, "json"), ("", "text"), (b"", "base64"), (bytearray(b"x"), "base64")], ids=repr
)
def test_the_encoding_tells_the_kind(payload: Any, encoding: str) -> None:
    assert codec.encode_payload(payload, LIMIT)[1] == encoding


def test_the_limit_counts_what_the_user_pushed() -> None:
    codec.encode_payload(b"\xff" * 100, 100)
    codec.encode_payload("é" * 50, 100)
    for payload in (b"\xff" * 101, "é" * 51, {"a": "é" * 50}):
        with pytest.raises(PayloadTooLarge, match="max_payload"):
            codec.encode_payload(payload, 100)
    with pytest.raises(PayloadTooLarge):
        codec.encode_result(list(range(100)), 100)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"\0" * 100,
        b"[]",
        b"null",
        b"3",
        b"{",
        b'{"a": 1',
        b'{"a": 1}x',
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"a": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda raw: ascii(raw[:12]),
)
def test_a_file_that_is_not_an_object_says_where_and_why(raw: bytes) -> None:
    with pytest.raises(InvalidTask, match=r"frontier/5/00/x\.json: \w"):
        codec.loads(raw, "frontier/5/00/x.json")


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    with contextlib.suppress(InvalidTask):
        assert isinstance(codec.loads(raw, "here"), dict)


def test_a_payload_at_the_depth_limit_can_be_read_from_its_file() -> None:
    payload: Any = {}
    while True:
        try:
            value, encoding = codec.encode_payload(payload, LIMIT)
        except InvalidTask:
            break
        codec.loads(codec.dumps({"payload": value, "encoding": encoding}), "here")
        payload = {"d": payload}


def test_a_result_that_could_not_be_read_again_is_refused() -> None:
    result: Any = []
    while True:
        try:
            value, encoding = codec.encode_result(result, LIMIT)
        except InvalidTask:
            break
        codec.loads(codec.dumps({"result": value, "encoding": encoding}), "here")
        result = [result]


def test_a_value_that_holds_itself_is_refused_at_once() -> None:
    loop: list[Any] = []
    loop += [loop, loop, {"again": loop}]
    for refuse in (lambda: codec.encode_result(loop, LIMIT), lambda: codec.encode_payload({"a": loop}, LIMIT)):
        with pytest.raises(InvalidTask, match="nested deeper"):
            refuse()


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": float("inf")}, {"a": {1, 2}}, {"a": "\ud800"}], ids=repr)
def test_what_json_does_not_know_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTask):
        codec.encode_payload(value, LIMIT)


@pytest.mark.parametrize(
    ("value", "encoding"),
    [("x", "base64"), (5, "text"), (5, "base64"), ({}, "text"), ("x", "pickle"), ("x", None), ("x", ["json"])],
)
def test_a_wrong_encoding_is_refused(value: Any, encoding: Any) -> None:
    with pytest.raises(InvalidTask, match="here"):
        codec.decode_payload(value, encoding, "here")


def test_bytes_are_kept_as_base64() -> None:
    assert codec.encode_payload(b"\0\xff", LIMIT) == (base64.b64encode(b"\0\xff").decode(), "base64")


def test_json_is_one_line_of_plain_utf8() -> None:
    raw = codec.dumps({"ü": "a\nb"})
    assert b"\n" not in raw
    assert "ü".encode() in raw
    assert json.loads(raw) == {"ü": "a\nb"}


def test_new_ids_grow_and_differ() -> None:
    ids = [codec.new_id() for _ in range(5000)]
    assert ids == sorted(set(ids))


def test_times_are_utc_with_microseconds_and_go_back() -> None:
    assert codec.iso(1_795_000_865.12) == "2026-11-18T11:21:05.120000Z"
    assert codec.parse_iso(codec.iso(1_795_000_865.12)) == pytest.approx(1_795_000_865.12)
    assert codec.parse_iso("2026-11-18T12:01:05") == codec.parse_iso("2026-11-18T14:01:05+02:00")
    assert codec.parse_iso(7) == 7.0
    odd: list[Any] = [None, "", "soon", True, [], {}]
    assert [codec.parse_iso(value) for value in odd] == [None] * len(odd)
