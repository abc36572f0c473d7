"""The checker of the soak: each thing that must not happen is noticed when it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from journal import EPOCH, Found, judge

GOOD = ["pushed a 0 -", "run a 1 x", "run a 2 y", "acked a 2 y"]


def write(folder: Path, top: str, name: str, **record: Any) -> None:
    path = folder / top / "0" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"epoch": 0, **record}))


def witness(folder: Path, name: str = "a.json", **record: Any) -> None:
    given = {"task_id": "a", "state": "done", "token": 2, "result": "y", **record}
    write(folder, "completed", name, **given)


def judged(folder: Path, *lines: str, logs: tuple[str, ...] = ()) -> Found:
    return judge([*GOOD, *lines], folder, logs)


def test_a_task_that_was_taken_over_and_completed_once_is_fine(tmp_path: Path) -> None:
    witness(tmp_path)
    found = judged(tmp_path)
    assert found.all == []
    assert (found.tasks, found.runs, found.acks, found.completed) == (1, 2, 1, 1)


def test_a_task_that_was_put_back_has_two_lives(tmp_path: Path) -> None:
    witness(tmp_path)
    witness(tmp_path, "a~e1.json", epoch=1, token=EPOCH + 1, result="z")
    assert judged(tmp_path, "rerun a 0 -", f"run a {EPOCH + 1} z", f"acked a {EPOCH + 1} z").all == []


def test_a_task_without_a_trace_is_lost(tmp_path: Path) -> None:
    witness(tmp_path)
    assert len(judged(tmp_path, "pushed b 0 -").lost) == 1


def test_a_task_that_ran_and_is_nowhere_is_lost(tmp_path: Path) -> None:
    assert len(judged(tmp_path).lost) == 1


def test_a_rerun_that_was_answered_and_did_not_happen_is_lost(tmp_path: Path) -> None:
    witness(tmp_path)
    assert len(judged(tmp_path, "rerun a 0 -").lost) == 1


def test_two_accepted_acks_are_double(tmp_path: Path) -> None:
    witness(tmp_path)
    assert judged(tmp_path, "acked a 2 y").double


def test_an_ack_that_is_not_the_witness_is_double(tmp_path: Path) -> None:
    witness(tmp_path, token=1, result="x")
    assert judged(tmp_path).double


def test_a_token_that_was_handed_out_twice_is_double(tmp_path: Path) -> None:
    witness(tmp_path)
    assert judged(tmp_path, "run a 1 w").double


def test_a_superseded_lease_that_completed_is_double(tmp_path: Path) -> None:
    witness(tmp_path)
    assert judged(tmp_path, "run a 3 w").double


def test_more_acks_in_the_logs_than_witnesses_are_double(tmp_path: Path) -> None:
    witness(tmp_path)
    line = json.dumps({"task": "a", "outcome": "done"})
    assert judged(tmp_path, logs=(line,)).all == []
    assert judged(tmp_path, logs=(line, '{"task": "a", "outc', line)).double


def test_a_witness_of_a_run_that_nobody_saw_is_wrong(tmp_path: Path) -> None:
    witness(tmp_path)
    witness(tmp_path, "b.json", task_id="b")
    assert judged(tmp_path).wrong


def test_a_task_that_is_both_completed_and_failed_is_wrong(tmp_path: Path) -> None:
    witness(tmp_path)
    write(tmp_path, "failed", "a.json", task_id="a", state="dead")
    assert judged(tmp_path).wrong


def test_a_cancel_that_was_answered_and_did_not_happen_is_wrong(tmp_path: Path) -> None:
    witness(tmp_path)
    assert judged(tmp_path, "cancelled a 0 -").wrong


@pytest.mark.parametrize("place", ["frontier/a.json", "scheduled/a.json", "active-leases/a~2.lease"])
def test_what_is_left_behind_is_wrong(tmp_path: Path, place: str) -> None:
    witness(tmp_path)
    top, _, name = place.partition("/")
    write(tmp_path, top, name)
    assert judged(tmp_path).wrong


def test_the_slots_of_a_dead_letter_stay(tmp_path: Path) -> None:
    for name in ("frontier/a~e1.json", "active-leases/a~e1.lease", "active-leases/a~e1~12.lease"):
        top, _, file = name.partition("/")
        write(tmp_path, top, file)
    write(tmp_path, "failed", "a~e1.json", task_id="a", epoch=1, state="dead")
    witness(tmp_path)
    assert judged(tmp_path).all == []
