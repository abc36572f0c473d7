"""Values that nobody would write on purpose: each came out of fuzzing, and was once an error that nobody documents."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from input_kit import Place, task_bytes, until, work_off_good

import dfq
from dfq.checks import check_delay, check_limit, check_priority
from dfq.cli import main, output
from dfq.codec import loads, parse_iso
from dfq.config import resolve
from dfq.lease import lease_bytes
from dfq.names import encode, is_hashed
from dfq.tree import is_key
from dfq.work.link import HEADER, LinkClosed, recv_frame
from dfq.work.slot import _outcome

pytestmark = pytest.mark.timeout(30)

HUGE = 10**5000  # Python refuses to write it as text


@pytest.mark.parametrize("check", [check_priority, check_delay, check_limit])
def test_a_number_that_cannot_be_shown_is_refused_in_words(check: Any) -> None:
    with pytest.raises(dfq.QueueError, match="it must be a"):
        check(-HUGE)


def test_a_setting_that_cannot_be_shown_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(dfq.ConfigError, match="setting lease = "):
        resolve(root=tmp_path, lease=HUGE)


@pytest.mark.parametrize(
    "text",
    ["lease = " + "9" * 5000, "lease = 0x" + "f" * 5000, "lease" + ".a" * 400 + " = 1", "x = " + "[" * 9000],
    ids=["many digits", "many hex digits", "nested", "deep"],
)
def test_a_config_file_that_python_chokes_on_is_refused_in_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "dfq.toml").write_text(text)
    with pytest.raises(dfq.ConfigError, match=r"dfq\.toml"):
        resolve(root=tmp_path)


def test_a_config_file_with_a_name_of_30000_parts_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "dfq.toml").write_text("a." * 30_000 + "a = 1")
    began = time.process_time()
    with pytest.raises(dfq.ConfigError, match="dots"):
        resolve(root=tmp_path)
    assert time.process_time() - began < 1


def test_a_pipe_in_place_of_a_config_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dfq.toml")
    with pytest.raises(dfq.ConfigError, match="is a pipe"):
        resolve(root=tmp_path)


@pytest.mark.parametrize("name", ["../../x", "a/b", "~x", ".hidden", "x" * 20, "\n" * 155])
def test_a_name_with_a_hash_is_one_only_if_an_id_has_it(name: str) -> None:
    tail = "%h" + "0123456789abcdef" * 2
    long = name + "x" * (160 - len(name))
    assert not is_hashed(name + tail)
    if name != "x" * 20:
        assert not is_key(long + tail)
    assert is_key(encode("ä/" * 300))


def test_a_receipt_cannot_lead_out_of_the_queue(place: Place) -> None:
    name = "../../../outside/" + "x" * 143 + "%h" + "0123456789abcdef" * 2
    lease = place.outside / f"{name.rpartition('/')[2]}.lease"
    with place.open() as queue:
        lease.write_text('{"nonce": "s", "state": "leased"}')
        with pytest.raises(dfq.InvalidTask, match="receipt"):
            queue.resume_lease(f"1.s.5.{name}")  # type: ignore[attr-defined]
        lease.unlink()


def test_a_lease_that_lacks_fields_can_be_renewed_and_completed(place: Place) -> None:
    assert len(lease_bytes({"state": "leased", "note": "x" * 5000})) > 1024
    for verb in ("heartbeat", "ack"):
        with place.open(lease=60) as queue:
            queue.push({}, id="bad", if_exists="skip")
            place.lease().write_text(json.dumps({"state": "leased", "nonce": 7, "ttl_s": 60}))
            getattr(queue, verb)(queue.resume_lease("1.7.5.bad"))  # type: ignore[attr-defined]
    with place.open() as queue:
        assert queue.get("bad").state == "completed"


def test_what_is_no_json_in_a_file_of_ours_is_shown_all_the_same(place: Place) -> None:
    with place.open() as queue:
        place.task("nan").write_bytes(task_bytes("nan", payload={"x": float("nan")}))
        place.task("half").write_bytes(task_bytes("half", payload="\ud800"))
        place.path("completed", "token").write_text('{"state": "done", "result": [NaN], "token": NaN, "attempt": 1}')
        queue.push({}, id="good")
    env = {"DFQ_ROOT": str(place.root), "DFQ_QUEUE": "q"}
    for args in (["ls", "--json"], ["show", "nan"], ["show", "--json", "half"], ["show", "token", "--json"]):
        done = CliRunner().invoke(main, args, env=env)
        assert done.exit_code == 0, done.output
        for line in done.stdout.splitlines() if "--json" in args else []:
            json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_that_no_calendar_has_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    assert output.moment(text)
    assert parse_iso(10**400) is None


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b"[" * 50_000, b'"x"'])
def test_a_frame_that_is_no_object_ends_the_link(body: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=theirs.sendall, args=(HEADER.pack(len(body)) + body,))
        sender.start()
        with pytest.raises(LinkClosed):
            recv_frame(ours)
        sender.join()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"outcome": "done"},
        {"outcome": "failed"},
        {"outcome": "failed", "error": 7, "brief": "x"},
        {"outcome": ["done"], "payload": 1},
        {"outcome": "lost", "error": "x", "brief": "x"},
        {"outcome": "released", "error": "x", "brief": "x", "delay": "soon"},
        {"outcome": "released", "error": "x", "brief": "x", "delay": float("nan")},
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_fails_the_attempt(answer: dict[str, Any]) -> None:
    outcome = _outcome(answer)
    assert outcome.kind == "failed"
    assert "no sense" in outcome.error


def test_looking_how_deep_a_file_is_takes_no_memory_of_its_own() -> None:
    raw = b'{"a": [' + b"[]," * 300_000 + b"[]]}"
    tracemalloc.start()
    try:
        loads(raw, "here")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 35 * len(raw)


@pytest.mark.parametrize("stranger", ["empty", "garbage", "pipe"])
def test_a_scheduled_task_is_not_lost_for_something_else_that_has_its_name(place: Place, stranger: str) -> None:
    with place.open() as queue:
        queue.push({"n": 1}, id="bad", delay=0.05)
        queue.push({}, id="good", delay=0.05)
        if stranger == "pipe":
            os.mkfifo(place.task())
        else:
            place.task().write_bytes(b"" if stranger == "empty" else b"{")
        work_off_good(queue, "good")
        until(lambda: queue.poll() == [])
        waiting = list((place.folder / "scheduled").rglob("bad.json"))
        assert len(waiting) == 1
        assert json.loads(waiting[0].read_bytes())["payload"] == {"n": 1}
        # Once it is out of the way, the task runs; that of a dead file after a retry.
        place.task().unlink()
        (task,) = until(lambda: queue.retry() is not None and queue.poll(wait=0.2), within=10)
        assert task.payload == {"n": 1}
        queue.ack(task)


def test_a_dead_letter_without_a_task_is_kept_until_it_is_past_its_retention(place: Place) -> None:
    with place.open() as queue:
        letter = place.path("failed")
        letter.write_text('{"task_id": "bad", "state": "dead", "payload": {"n": 1}}')
        assert queue.poll() == []  # an idle worker clears up at once
        assert letter.exists()
        assert [f.code for f in queue.fsck(settle=0)] == ["orphan-letter"]  # type: ignore[attr-defined]
