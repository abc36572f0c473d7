"""Queues that other versions wrote: each opens and loses nothing, or is refused with the way out (ADR 020)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dfq
from dfq.providers.filesystem import FilesystemQueue

#: What the first version wrote with shards = 1: before epochs, stubs, windows of the schedule and clock.json.
FIRST = {
    "queue.json": {"format": 1, "queue_id": "6f0c", "created_at": "2026-11-01T09:00:00.000000Z", "shards": 1},
    "frontier/5/0/waiting.json": {
        "id": "waiting",
        "payload": {"n": 1},
        "encoding": "json",
        "priority": 5,
        "epoch": 0,
        "created_at": "2026-11-01T09:00:00.000000Z",
        "nonce": "a1",
    },
    "frontier/9/0/24%2F7 plumber.json": {
        "id": "24/7 plumber",
        "payload": "text",
        "encoding": "text",
        "priority": 9,
        "epoch": 0,
        "created_at": "2026-11-01T09:00:00.000000Z",
        "nonce": "a2",
    },
    "active-leases/0/24%2F7 plumber.lease": {
        "task_id": "24/7 plumber",
        "state": "leased",
        "worker_id": "pi4-1-abc",
        "generation": 1,
        "attempt": 1,
        "token": 1,
        "nonce": "b1",
        "host": "another-host",
        "boot_id": "another-boot",
        "pid": 1,
        "liveness": "lock",
        "claimed_at": "2026-11-01T09:00:00.000000Z",
        "heartbeat_timestamp": "2026-11-01T09:00:00.000000Z",
        "expiry_timestamp": "2026-11-01T09:00:01.000000Z",
        "ttl_s": 0.2,
        "deadline_boottime": 100.0,
        "beat": 0,
    },
    "frontier/5/0/dead.json": {
        "id": "dead",
        "payload": {"n": 2},
        "encoding": "json",
        "priority": 5,
        "epoch": 0,
        "created_at": "2026-11-01T09:00:00.000000Z",
        "nonce": "a3",
    },
    "active-leases/0/dead.lease": {
        "task_id": "dead",
        "state": "released",
        "worker_id": "pi4-1-abc",
        "generation": 1,
        "attempt": 5,
        "nonce": "b2",
        "delay_s": 0,
        "error": "HTTP 500",
        "released_at": "2026-11-01T09:00:01.000000Z",
        "ttl_s": 900,
        "boot_id": "another-boot",
    },
    "active-leases/0/dead~2.lease": {
        "task_id": "dead",
        "state": "dead",
        "payload": {"n": 2},
        "encoding": "json",
        "priority": 5,
        "epoch": 0,
        "attempts": 5,
        "generation": 2,
        "reason": "5 of 5 attempts failed",
        "nonce": "b3",
        "errors": [{"generation": 1, "attempt": 5, "worker_id": "pi4-1-abc", "error": "HTTP 500"}],
    },
    "scheduled/20260101T000000Z/later.json": {
        "id": "later",
        "payload": {"n": 3},
        "encoding": "json",
        "priority": 5,
        "epoch": 0,
        "created_at": "2026-01-01T00:00:00.000000Z",
        "nonce": "a4",
        "due_at": "2026-01-01T00:00:00.000000Z",
        "delay_s": 60,
        "boot_id": "another-boot",
        "deadline_boottime": 5.0,
    },
    "completed/0/done.json": {
        "task_id": "done",
        "state": "done",
        "worker_id": "pi4-1-abc",
        "host": "pi4",
        "attempt": 1,
        "generation": 1,
        "token": 1,
        "epoch": 0,
        "completed_at": "2026-11-01T09:00:00.000000Z",
        "result": {"items": 20},
        "result_encoding": "json",
        "nonce": "c1",
    },
    "completed/0/cancelled.json": {
        "task_id": "cancelled",
        "state": "cancelled",
        "attempt": 0,
        "generation": 1,
        "token": 1,
        "epoch": 0,
        "completed_at": "2026-11-01T09:00:00.000000Z",
        "result": None,
        "result_encoding": "json",
        "nonce": "c2",
    },
}


def lay(folder: Path, files: dict[str, Any]) -> None:
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((content if isinstance(content, str) else json.dumps(content)) + "\n")
    for path, twin in (
        ("active-leases/0/dead~2.lease", "failed/0/dead.json"),
        ("completed/0/cancelled.json", "retired/0/cancelled.json"),
    ):
        if (folder / path).exists():
            (folder / twin).parent.mkdir(parents=True)
            (folder / twin).hardlink_to(folder / path)


def opened(root: Path, **settings: Any) -> FilesystemQueue:
    queue = dfq.open_queue("q", root, **settings)
    assert isinstance(queue, FilesystemQueue)
    return queue


def test_a_queue_of_the_first_version_opens_and_is_worked_off(tmp_path: Path) -> None:
    lay(tmp_path / "q", FIRST)
    with opened(tmp_path) as q:
        counts = q.counts()
        assert (counts.completed, counts.failed, counts.leased) == (1, 1, 1)
        assert q.get("done").result == {"items": 20}
        assert q.get("dead").errors[0]["error"] == "HTTP 500"
        assert q.get("cancelled").cancelled
        done = {}
        q.retry("dead")
        while tasks := q.poll(10, wait=1):
            for task in tasks:
                done[task.id] = (task.payload, task.token)
                q.ack(task)
        assert done == {
            "waiting": ({"n": 1}, 1),
            "24/7 plumber": ("text", 2),
            "dead": ({"n": 2}, 4),
            "later": ({"n": 3}, 1),
        }
        assert q.push({}, id="done", if_exists="rerun") == "done"
        assert q.push({}, id="cancelled") == "cancelled"
        assert q.counts() == dfq.Counts(pending=2, completed=4)


def test_a_queue_of_the_first_version_passes_the_check_of_its_files(tmp_path: Path) -> None:
    lay(tmp_path / "q", FIRST)
    with opened(tmp_path) as q:
        assert [f for f in q.fsck() if f.level == "must"] == []


def test_a_lease_in_the_form_of_adr_010_goes_by_its_time_stamps(tmp_path: Path) -> None:
    old = {"worker_id": "w", "expiry_timestamp": "2020-01-01T00:00:00Z", "heartbeat_timestamp": "2020-01-01T00:00:00Z"}
    young = old | {"expiry_timestamp": "2999-01-01T00:00:00Z"}
    tasks = {f"frontier/5/0/{n}.json": FIRST["frontier/5/0/waiting.json"] | {"id": n} for n in ("old", "young")}
    leases = {"active-leases/0/old.lease": old, "active-leases/0/young.lease": young}
    lay(tmp_path / "q", {"queue.json": FIRST["queue.json"]} | tasks | leases)
    with opened(tmp_path) as q:
        assert [(task.id, task.attempt) for task in q.poll(10)] == [("old", 1)]


@pytest.mark.parametrize("version", [2, 3, 1000])
def test_a_newer_queue_is_refused_with_the_way_out_and_nothing_is_changed(tmp_path: Path, version: int) -> None:
    lay(tmp_path / "q", FIRST | {"queue.json": FIRST["queue.json"] | {"format": version}})
    before = {p: p.read_bytes() for p in (tmp_path / "q").rglob("*") if p.is_file()}
    with pytest.raises(dfq.QueueUnavailable, match=rf"queue\.json: format {version}.*up to 1.*upgrade"):
        opened(tmp_path)
    assert {p: p.read_bytes() for p in (tmp_path / "q").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("version", [0, -1, "1", None, 1.5, True])
def test_a_format_that_never_was_is_refused(tmp_path: Path, version: Any) -> None:
    lay(tmp_path / "q", {"queue.json": FIRST["queue.json"] | {"format": version}})
    with pytest.raises(dfq.QueueUnavailable, match=r"queue\.json: field 'format'"):
        opened(tmp_path)


def test_a_tree_that_lost_its_queue_json_is_not_taken_for_a_new_queue(tmp_path: Path) -> None:
    lay(tmp_path / "q", {path: content for path, content in FIRST.items() if path != "queue.json"})
    with pytest.raises(dfq.QueueUnavailable, match=r"queue\.json.*restore"):
        opened(tmp_path)


def test_fields_and_files_of_later_versions_are_left_alone(tmp_path: Path) -> None:
    task = FIRST["frontier/5/0/waiting.json"] | {"tags": ["new"], "deadline": 5}
    strange = {"frontier/5/0/b4f3.jsonl": "{}", "salvage/b~1.pi.jsonl": "{}", "active-leases/0/b4f3~1.journal": "{}"}
    lay(tmp_path / "q", {"queue.json": FIRST["queue.json"], "frontier/5/0/waiting.json": task} | strange)
    with opened(tmp_path) as q:
        (task_,) = q.poll(10)
        q.ack(task_)
        assert q.counts() == dfq.Counts(completed=1)
    for path in strange:
        assert (tmp_path / "q" / path).exists()
