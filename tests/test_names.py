"""Ids as file names: reversible, unique, and short enough for any filesystem."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfq import names
from dfq.errors import ConfigError, InvalidTask

ANY_ID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300).filter(
    lambda i: len(i.encode()) <= names.MAX_ID_BYTES
)
#: Text full of what the encoding itself is made of.
TRICKY_ID = st.text(st.sampled_from("%~/.-h2F7E0a\0\n é🦉"), min_size=1, max_size=250)
IDS = ANY_ID | TRICKY_ID


@given(IDS)
def test_a_name_goes_back_to_its_id(task_id: str) -> None:
    name = names.encode(task_id)
    if names.is_hashed(name):
        assert len(task_id.encode()) > 50
        assert names.decode(name) is None
    else:
        assert names.decode(name) == task_id
    assert names.is_name(name)


#: What most ids are, and names that nearly are one's.
PATHS = st.text(st.sampled_from("ab9/.- _=+,@:"), min_size=1, max_size=250)
NEARLY = st.lists(st.sampled_from(["a", "9", ".", "-", " ", "%2F", "%2f", "%", "2", "F", "~", "\n"]), max_size=90)


@given(PATHS)
def test_a_path_is_named_as_any_other_id(task_id: str) -> None:
    name, (plain, path, path_name) = names.encode(task_id), (names._PLAIN, names._PLAIN_PATH, names._PLAIN_PATH_NAME)
    back = names.decode(name)
    names._PLAIN = names._PLAIN_PATH = names._PLAIN_PATH_NAME = lambda _: None  # type: ignore[assignment,misc]
    try:
        assert (names.encode(task_id), names.decode(name)) == (name, back)
    finally:
        names._PLAIN, names._PLAIN_PATH, names._PLAIN_PATH_NAME = plain, path, path_name


@given(NEARLY)
def test_a_name_that_is_nearly_a_path_is_not_mistaken_for_one(parts: list[str]) -> None:
    name = "".join(parts)
    task_id = names.decode(name)
    assert task_id is None or names.encode(task_id) == name


def test_no_name_takes_long_to_be_refused() -> None:
    started = time.process_time()
    for name in ("a" * 199 + "!", "%2F" * 66 + "!", "%2Fa" * 49 + "%", "a%2F" * 49 + "\n"):
        names.decode(name)
    assert time.process_time() - started < 1, "the pattern goes back and forth"


@given(IDS, IDS)
def test_two_ids_never_share_a_name(one: str, other: str) -> None:
    assert (names.encode(one) == names.encode(other)) == (one == other)


@given(IDS)
def test_a_name_is_fit_for_a_file(task_id: str) -> None:
    name = names.encode(task_id)
    assert 0 < len(name.encode()) <= names.MAX_NAME_BYTES
    assert len(f"{name}~9999.lease".encode()) <= 255
    assert not {unicodedata.category(c) for c in name} & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert not set(name) & set("/~\0\n")
    assert name[0] not in ".-"


@given(st.text(max_size=250))
def test_a_name_that_is_decoded_is_the_one_its_id_encodes_to(name: str) -> None:
    task_id = names.decode(name)
    assert task_id is None or names.encode(task_id) == name


@given(IDS)
def test_a_name_is_an_id_too_and_is_not_mistaken_for_the_first(task_id: str) -> None:
    name = names.encode(task_id)
    if name != task_id:
        assert names.encode(name) != name


@pytest.mark.parametrize(
    ("task_id", "name"),
    [
        ("ChIJrWcEWr8B2YgR7Sw1Y_d7GUw", "ChIJrWcEWr8B2YgR7Sw1Y_d7GUw"),
        ("example.com", "example.com"),
        ("24/7 plumber", "24%2F7 plumber"),
        ("29.5/-98.5/dentist.csv", "29.5%2F-98.5%2Fdentist.csv"),
        ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
        (".", "%2E"),
        ("-rf", "%2Drf"),
        ("a~2", "a%7E2"),
        ("100%", "100%25"),
        ("a\0b", "a%00b"),
        ("\u2028", "%E2%80%A8"),
        ("naïve 🦉", "naïve 🦉"),
    ],
)
def test_names_are_what_the_format_says(task_id: str, name: str) -> None:
    assert names.encode(task_id) == name
    assert names.decode(name) == task_id


def test_a_long_id_has_a_readable_head_and_a_hash() -> None:
    one, other = "tile/" * 100 + "a", "tile/" * 100 + "b"
    name = names.encode(one)
    assert name.startswith("tile%2Ftile%2F")
    assert names.is_hashed(name)
    assert name[:160] == names.encode(other)[:160]
    assert name != names.encode(other)


@pytest.mark.parametrize(("length", "hashed"), [(199, False), (200, False), (201, True), (4096, True)], ids=str)
def test_only_a_name_over_200_bytes_is_cut(length: int, hashed: bool) -> None:
    assert names.is_hashed(names.encode("x" * length)) is hashed


@pytest.mark.parametrize("name", ["", "%", "%2f", "%41", "a/b", "a~2", ".x", "-x", "%FF", "%hxyz", "a\nb", "%00%"])
def test_a_name_that_no_id_has_is_none(name: str) -> None:
    assert names.decode(name) is None
    assert not names.is_name(name)


@pytest.mark.parametrize("task_id", ["", "x" * 4097, "\ud800", None, 5, b"x"], ids=lambda i: ascii(i)[:12])
def test_what_cannot_have_a_name_is_refused(task_id: object) -> None:
    with pytest.raises(InvalidTask, match="task id"):
        names.encode(task_id)  # type: ignore[arg-type]


@given(IDS, st.integers(1, 4096))
def test_a_shard_is_one_of_so_many_and_as_wide_as_all_others(task_id: str, shards: int) -> None:
    shard = names.shard_of(names.encode(task_id), shards)
    assert 0 <= int(shard, 16) < shards
    assert len(shard) == names.shard_width(shards)
    assert shard == shard.lower()


@pytest.mark.parametrize(("shards", "width"), [(1, 1), (16, 1), (17, 2), (256, 2), (257, 3), (4096, 3)])
def test_a_shard_is_as_wide_as_the_highest(shards: int, width: int) -> None:
    assert names.shard_width(shards) == width


@pytest.mark.parametrize("queue", ["", ".x", "-x", "a/b", "x" * 101, "a b", "é", None, "a\n"])
def test_a_queue_name_is_fit_to_be_a_folder(queue: object) -> None:
    assert names.check_queue_name("tiles_2.0-b") == "tiles_2.0-b"
    with pytest.raises(ConfigError, match="queue name"):
        names.check_queue_name(queue)  # type: ignore[arg-type]
