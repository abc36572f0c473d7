"""What push promises: payloads come back as they were, ids are kept, and are taken once."""

from __future__ import annotations

import dataclasses
import math
from types import MappingProxyType
from typing import Any

import pydantic
import pytest
from backends import Queues, claim, needs

import dfq
from dfq import Push

ODD_IDS = [
    "29.5/-98.5/dentist.csv",
    "ChIJrWcEWr8B2YgR7Sw1Y_d7GUw",
    "example.com",
    "24/7 plumber",
    "../../etc/passwd",
    "/etc/passwd",
    "nul\0in it",
    "x" * 4000,
    "é" * 2000,
    "🦉 owl 👩‍👩‍👧",
    ".hidden",
    "-rf",
    "..",
    ".",
    "a~2",
    "a~2.lease",
    "a.json",
    "100%",
    "%2F",
    "%h" + "0" * 32,
    "line\nbreak\u2028and more",
    " lead and trail ",
    "con",
    "ÅNGSTRÖM",
]


@dataclasses.dataclass
class Tile:
    lat: float
    phrase: str


class Page(pydantic.BaseModel):
    url: str
    depth: int = 0


@pytest.mark.parametrize(
    ("payload", "seen"),
    [
        ({"url": "https://example.com", "deep": [1, None, {"ü": 2.5}]},) * 2,
        ({},) * 2,
        (MappingProxyType({"a": 1}), {"a": 1}),
        (Tile(29.5, "dentist"), {"lat": 29.5, "phrase": "dentist"}),
        (Page(url="u"), {"url": "u", "depth": 0}),
        ("text: ünï\n\0",) * 2,
        ("",) * 2,
        (bytes(range(256)),) * 2,
        (b"",) * 2,
    ],
    ids=["mapping", "empty", "proxy", "dataclass", "pydantic", "str", "no-text", "bytes", "no-bytes"],
)
def test_a_payload_comes_back_as_it_was(queues: Queues, payload: Any, seen: Any) -> None:
    q = queues.open()
    q.push(payload, id="p")
    if queues.can.listing:
        assert q.get("p").payload == seen
    task = claim(q)
    assert task.payload == seen
    assert type(task.payload) is type(seen)


def test_a_pushed_payload_is_not_changed_by_its_owner_later(queues: Queues) -> None:
    q = queues.open()
    payload: dict[str, Any] = {"list": [1]}
    q.push(payload)
    payload["list"].append(2)
    assert claim(q).payload == {"list": [1]}


def test_a_payload_nested_to_the_limit_comes_back(queues: Queues) -> None:
    q = queues.open()
    deepest: dict[str, Any] = {}
    for _ in range(99):
        deepest = {"d": deepest}
    q.push(deepest)
    assert claim(q).payload == deepest


@pytest.mark.parametrize(
    "payload",
    [None, 3, [1], {1: "a"}, {"a": object()}, {"a": math.nan}, "\ud800", {"\ud800": 1}, Tile, Page, {"a": b"x"}],
    ids=lambda p: repr(p)[:20].encode("ascii", "replace").decode(),
)
def test_a_payload_that_cannot_be_kept_is_refused(queues: Queues, payload: Any) -> None:
    q = queues.open()
    with pytest.raises(dfq.InvalidTask, match="payload"):
        q.push(payload)
    assert q.counts().pending == 0


def test_a_payload_nested_too_deep_is_refused(queues: Queues) -> None:
    q = queues.open()
    deepest: dict[str, Any] = {}
    for _ in range(5000):
        deepest = {"d": deepest}
    with pytest.raises(dfq.InvalidTask):
        q.push(deepest)


def test_a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_not(queues: Queues) -> None:
    q = queues.open(max_payload=1000)
    with pytest.raises(dfq.PayloadTooLarge, match=r"1,001.*1,000"):
        q.push("x" * 1001)
    with pytest.raises(dfq.PayloadTooLarge):
        q.push(b"x" * 1001)
    with pytest.raises(dfq.PayloadTooLarge):
        q.push({"x": "é" * 500})
    q.push(b"\xff" * 1000)
    q.push("x" * 1000)
    assert len(q.poll(batch_size=10)) == 2


@pytest.mark.parametrize("task_id", ODD_IDS, ids=lambda i: ascii(i)[:30])
def test_any_text_is_an_id(queues: Queues, task_id: str) -> None:
    q = queues.open()
    assert q.push({"n": 1}, id=task_id) == task_id
    with pytest.raises(dfq.TaskExists):
        q.push({"n": 2}, id=task_id)
    task = claim(q)
    assert task.id == task_id
    q.nack(task, error="once more")
    task = claim(q)
    assert task.attempt == 2
    q.ack(task, result={"ok": True})
    with pytest.raises(dfq.TaskExists):
        q.push({"n": 3}, id=task_id)
    if queues.can.listing:
        assert q.get(task_id).state == "completed"
        assert [info.id for info in q.tasks("completed")] == [task_id]


def test_odd_ids_live_side_by_side_and_in_the_queue_only(queues: Queues) -> None:
    q = queues.open()
    ids = q.push_many(Push({"id": task_id}, id=task_id) for task_id in ODD_IDS)
    assert ids == ODD_IDS
    tasks = q.poll(batch_size=100)
    assert sorted(task.id for task in tasks) == sorted(ODD_IDS)
    assert all(task.payload == {"id": task.id} for task in tasks)
    q.ack_many(tasks)
    assert q.counts().completed == len(ODD_IDS)
    # Nothing was written outside of the root, whatever the ids say.
    assert {path.name for path in queues.root.parent.iterdir()} <= {"root"}


@pytest.mark.parametrize(
    "task_id", ["", "x" * 4097, "é" * 2049, "\ud800", 7, b"bytes", ["a"]], ids=lambda i: ascii(i)[:20]
)
def test_an_id_that_cannot_be_kept_is_refused(queues: Queues, task_id: Any) -> None:
    q = queues.open()
    with pytest.raises(dfq.InvalidTask, match="id"):
        q.push({}, id=task_id)
    with pytest.raises(dfq.InvalidTask, match="id"):
        q.get(task_id)


def test_ids_that_nobody_chose_differ(queues: Queues) -> None:
    q = queues.open()
    ids = [q.push({"n": n}) for n in range(20)] + q.push_many({"n": n} for n in range(20))
    assert len(set(ids)) == 40
    assert ids == sorted(ids)


@pytest.mark.parametrize("priority", [-1, 10, 5.0, True, "5", None])
def test_a_wrong_priority_is_refused(queues: Queues, priority: Any) -> None:
    with pytest.raises(dfq.InvalidTask, match=r"priority.*0 to 9"):
        queues.open().push({}, priority=priority)


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, 1e12, "5", True, None])
def test_a_wrong_delay_is_refused(queues: Queues, delay: Any) -> None:
    q = queues.open()
    with pytest.raises(dfq.InvalidTask, match="delay"):
        q.push({}, delay=delay)
    q.push({}, id="t")
    task = claim(q)
    with pytest.raises(dfq.InvalidTask, match="delay"):
        q.nack(task, delay=delay)
    q.ack(task)


def test_a_wrong_if_exists_is_refused(queues: Queues) -> None:
    with pytest.raises(dfq.ConfigError, match="error, skip, rerun"):
        queues.open().push({}, if_exists="replace")  # type: ignore[arg-type]


@needs("dedup")
def test_the_same_id_is_refused_in_every_state(queues: Queues) -> None:
    q = queues.open(max_attempts=1)

    def refused() -> None:
        for _ in range(2):
            with pytest.raises(dfq.TaskExists) as raised:
                q.push({"n": 2}, id="a/b")
            assert raised.value.task_id == "a/b"
            assert "a/b" in str(raised.value)
            assert q.push({"n": 2}, id="a/b", if_exists="skip") == "a/b"

    q.push({"n": 1}, id="a/b")
    refused()
    task = claim(q)
    assert task.payload == {"n": 1}
    refused()
    q.nack(task, error="no")
    assert q.counts().failed == 1
    refused()
    q.retry("a/b")
    q.ack(claim(q))
    refused()
    assert q.counts() == dfq.Counts(completed=1)


@needs("dedup", "delays")
def test_the_same_id_is_refused_while_it_is_scheduled(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 1}, id="later", delay=60)
    for delay in (0, 60, 30):
        with pytest.raises(dfq.TaskExists):
            q.push({"n": 2}, id="later", delay=delay)
        assert q.push({"n": 2}, id="later", delay=delay, if_exists="skip") == "later"
    assert q.counts() == dfq.Counts(scheduled=1)


@needs("dedup")
def test_a_scheduled_push_of_a_taken_id_is_refused(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 1}, id="t")
    with pytest.raises(dfq.TaskExists):
        q.push({"n": 2}, id="t", delay=60)
    q.ack(claim(q))
    with pytest.raises(dfq.TaskExists):
        q.push({"n": 2}, id="t", delay=60)
    assert q.counts() == dfq.Counts(completed=1)


@needs("rerun")
def test_rerun_puts_a_completed_task_back_and_its_token_grows(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 1}, id="t")
    first = claim(q)
    q.ack(first, result={"run": 1})
    assert q.push({"n": 2}, id="t", if_exists="rerun") == "t"
    assert q.counts() == dfq.Counts(pending=1)
    second = claim(q)
    assert second.payload == {"n": 2}
    assert second.attempt == 1
    assert second.token > first.token
    q.ack(second, result={"run": 2})
    assert q.get("t").result == {"run": 2}
    assert q.counts() == dfq.Counts(completed=1)


@needs("rerun")
def test_a_late_worker_of_an_old_epoch_completes_nothing(queues: Queues) -> None:
    q, other = queues.open(lease=0.2, auto_heartbeat=False), queues.open()
    q.push({"n": 1}, id="t")
    late = claim(q)
    other.ack(claim(other), result={"run": 1})
    other.push({"n": 2}, id="t", if_exists="rerun")
    for attempt in (lambda: q.ack(late, result="late"), lambda: q.nack(late), lambda: q.heartbeat(late)):
        with pytest.raises(dfq.LeaseLost):
            attempt()
    again = claim(other)
    with pytest.raises(dfq.LeaseLost):
        q.ack(late, result="late")
    assert (again.payload, again.attempt) == ({"n": 2}, 1)
    other.ack(again, result={"run": 2})
    assert other.get("t").result == {"run": 2}


@needs("rerun")
def test_a_task_can_be_put_back_again_and_again(queues: Queues) -> None:
    q = queues.open(max_attempts=1)
    tokens = []
    for n in range(4):
        q.push({"n": n}, id="a/b", if_exists="rerun")
        with pytest.raises(dfq.TaskExists):
            q.push({"n": n}, id="a/b", if_exists="rerun")
        task = claim(q)
        tokens.append(task.token)
        q.ack(task, result=n)
        assert q.counts() == dfq.Counts(completed=1)
        assert [info.result for info in q.tasks("completed")] == [n]
        with pytest.raises(dfq.TaskExists):
            q.push({}, id="a/b")
    assert tokens == sorted(set(tokens))
    assert q.poll() == []


@needs("rerun", "dead_letters")
def test_rerun_of_a_failed_task_takes_the_new_payload(queues: Queues) -> None:
    q = queues.open(max_attempts=1)
    q.push({"n": 1}, id="t")
    first = claim(q)
    q.nack(first, error="no")
    q.push({"n": 2}, id="t", if_exists="rerun")
    assert q.counts() == dfq.Counts(pending=1)
    second = claim(q)
    assert (second.payload, second.attempt) == ({"n": 2}, 1)
    assert second.token > first.token
    q.ack(second)
    assert q.counts() == dfq.Counts(completed=1)


@needs("dead_letters")
def test_rerun_puts_a_failed_task_back_with_all_its_attempts(queues: Queues) -> None:
    q = queues.open(max_attempts=1)
    q.push({"n": 1}, id="t")
    first = claim(q)
    q.nack(first, error="no")
    assert q.push({"n": 1}, id="t", if_exists="rerun") == "t"
    second = claim(q)
    assert second.attempt == 1
    assert second.token > first.token
    q.ack(second)
    assert q.counts() == dfq.Counts(completed=1)


def test_rerun_leaves_a_task_that_is_not_over_alone(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 1}, id="t")
    with pytest.raises(dfq.TaskExists):
        q.push({"n": 2}, id="t", if_exists="rerun")
    task = claim(q)
    with pytest.raises(dfq.TaskExists):
        q.push({"n": 2}, id="t", if_exists="rerun")
    q.ack(task)


def test_rerun_of_a_new_id_is_a_push(queues: Queues) -> None:
    q = queues.open()
    assert q.push({"n": 1}, id="t", if_exists="rerun") == "t"
    assert claim(q).payload == {"n": 1}


def test_push_many_takes_plain_payloads_and_pushes(queues: Queues) -> None:
    q = queues.open()
    assert q.push_many([]) == []
    ids = q.push_many([{"n": 1}, Push({"n": 2}, id="two", priority=9), "three"], priority=1)
    assert len(ids) == 3
    assert ids[1] == "two"
    tasks = q.poll(batch_size=3)
    assert {task.id: task.payload for task in tasks} == {ids[0]: {"n": 1}, "two": {"n": 2}, ids[2]: "three"}
    assert {task.id: task.priority for task in tasks} == {ids[0]: 1, "two": 9, ids[2]: 1}


def test_push_many_refuses_or_skips_ids_that_are_taken(queues: Queues) -> None:
    q = queues.open()
    q.push({"n": 0}, id="b")
    items = [Push({"n": 1}, id=task_id) for task_id in ("a", "b", "c", "a")]
    with pytest.raises(dfq.TaskExists):
        q.push_many(items)
    assert q.push_many(items, if_exists="skip") == ["a", "b", "c", "a"]
    tasks = q.poll(batch_size=10)
    assert {task.id: task.payload["n"] for task in tasks} == {"a": 1, "b": 0, "c": 1}


def test_push_many_of_a_wrong_item_says_which_kind(queues: Queues) -> None:
    with pytest.raises(dfq.InvalidTask, match="NoneType"):
        queues.open().push_many([{"n": 1}, None])


@pytest.mark.parametrize(
    "single", ["abc", {"n": 1}, b"abc", 5, None, Push({}), Page(url="u")], ids=lambda s: repr(s)[:8]
)
def test_push_many_of_one_payload_names_push(queues: Queues, single: Any) -> None:
    q = queues.open()
    with pytest.raises(dfq.InvalidTask, match=r"push_many takes many, such as a list, not .*: for one, use push"):
        q.push_many(single)
    assert q.counts() == dfq.Counts()


def test_push_and_push_many_tell_what_they_skip(queues: Queues) -> None:
    q = queues.open()
    skipped: list[str] = []
    q.push({"n": 0}, id="b", if_exists="skip", on_skip=skipped.append)
    q.push({"n": 0}, id="gone")
    q.cancel("gone")
    assert skipped == []
    items = [Push({"n": 1}, id=task_id) for task_id in ("a", "b", "c", "a", "gone")]
    assert q.push_many(items, if_exists="skip", on_skip=skipped.append) == ["a", "b", "c", "a", "gone"]
    assert sorted(skipped) == ["a", "b"]
    q.push({}, id="c", if_exists="skip", on_skip=skipped.append)
    assert sorted(skipped) == ["a", "b", "c"]


def test_what_is_there_already_is_named_with_its_state(queues: Queues) -> None:
    q = queues.open(max_attempts=1)
    q.push({}, id="t")
    with pytest.raises(dfq.TaskExists) as pending:
        q.push({}, id="t")
    q.nack(claim(q))
    with pytest.raises(dfq.TaskExists) as failed:
        q.push({}, id="t")
    assert (pending.value.state, failed.value.state) == ("pending", "failed")


def test_queues_of_other_names_are_other_queues(queues: Queues) -> None:
    one, two = queues.open("one"), queues.open("two")
    one.push({"n": 1}, id="t")
    two.push({"n": 2}, id="t")
    assert claim(two).payload == {"n": 2}
    assert claim(one).payload == {"n": 1}


def test_two_objects_of_one_queue_share_its_tasks(queues: Queues) -> None:
    one, two = queues.open(), queues.open()
    one.push({"n": 1}, id="t")
    task = claim(two)
    assert one.poll() == []
    assert one.counts().leased == 1
    two.ack(task)
    assert one.get("t").state == "completed"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "x" * 101, "a b", "a\0"])
def test_a_queue_name_that_is_no_folder_name_is_refused(queues: Queues, name: str) -> None:
    with pytest.raises(dfq.ConfigError, match="queue name"):
        queues.open(name)
