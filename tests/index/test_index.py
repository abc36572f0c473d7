"""A tree of files that another tool owns, worked off by leases (ADR 019)."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from index_kit import Ahead, Index, claim

import dfq

ODD = [
    "29.5/-98.5/dentist.csv",
    "29.5/-98.5/24 hour plumber",
    "flat.jsonl",
    "a/b/c/d/e/f.json",
    "-dash/~tilde.txt",
    "caf\u00e9/%2F.csv",
    "no suffix",
]


def test_seed_003_2_any_file_of_the_tree_is_a_task_and_its_bytes_the_payload(index: Index) -> None:
    for n, path in enumerate(ODD):
        index.add(path, bytes([n, 0, 255]))
    q = index.queue()
    before = index.snapshot()
    seen = {}
    while tasks := q.poll(3):
        for task in tasks:
            assert isinstance(task.payload, bytes)
            seen[task.id] = task.payload
            q.ack(task, result={"items": len(seen)})
    assert seen == {path: bytes([n, 0, 255]) for n, path in enumerate(ODD)}
    assert index.snapshot() == before, "nothing is written in the tree of tiles"
    assert q.counts() == dfq.Counts(completed=len(ODD))


def test_seed_003_4_the_witness_has_the_same_path(index: Index) -> None:
    index.add("29.5/-98.5/dentist.csv", "x")
    q = index.queue()
    q.ack(claim(q), result={"items": 20})
    witness = json.loads((index.witnesses / "29.5/-98.5/dentist.csv").read_text())
    assert (witness["task_id"], witness["result"]) == ("29.5/-98.5/dentist.csv", {"items": 20})
    info = q.get("29.5/-98.5/dentist.csv")
    assert (info.state, info.result) == ("completed", {"items": 20})
    assert info.path == str(index.witnesses / "29.5/-98.5/dentist.csv")


def test_what_another_tool_witnessed_is_done(index: Index) -> None:
    index.add("a/done.csv")
    index.add("a/todo.csv")
    (index.witnesses / "a").mkdir(parents=True)
    (index.witnesses / "a/done.csv").write_bytes(b"\xff not json")
    q = index.queue()
    assert q.counts() == dfq.Counts(pending=1, completed=1)
    assert q.get("a/done.csv").state == "completed"
    assert [task.id for task in q.poll(10)] == ["a/todo.csv"]


def test_hidden_temporary_and_strange_files_are_no_tasks(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    index.add("good.csv", "x")
    for path in (".hidden", ".git/config", "a/.DS_Store", "x.csv.tmp", "x.csv.part", "x~", ".x.swp", "a/b.swp"):
        index.add(path, "x")
    index.add("x" * 220, "x")
    (index.tiles / "link.csv").symlink_to("/etc/passwd")
    (index.tiles / "linked").symlink_to("/etc")
    os.mkfifo(index.tiles / "pipe")
    deep = index.tiles.joinpath(*"d" * 40)
    deep.mkdir(parents=True)
    (deep / "t.csv").write_text("x")
    q = index.queue()
    assert [task.id for task in q.poll(10)] == ["good.csv"]
    assert q.counts() == dfq.Counts(leased=1)
    assert "link.csv" in caplog.text


def test_tiles_appear_change_and_vanish_while_workers_run(index: Index) -> None:
    q = index.queue()
    assert q.poll() == []
    index.add("one/a.csv", "first")
    first = claim(q, 0)
    assert first.payload == b"first"
    index.add("one/b.csv", "old")
    index.add("two/three/c.csv", "c")
    index.add("one/b.csv", "new")
    (index.tiles / "two/three/c.csv").unlink()
    second = q.poll(10)
    assert [(task.id, task.payload) for task in second] == [("one/b.csv", b"new")]
    index.add("two/three/c.csv", "again")
    assert claim(q, 0).id == "two/three/c.csv"
    q.ack_many([first, *second])


def test_a_tile_that_vanishes_under_its_worker_can_be_completed(index: Index) -> None:
    index.add("a.csv")
    q = index.queue()
    task = claim(q)
    (index.tiles / "a.csv").unlink()
    q.heartbeat(task)
    q.ack(task, result=1)
    assert (index.witnesses / "a.csv").exists()
    assert q.poll() == []


def test_an_idle_worker_is_woken_by_a_new_tile_also_in_a_new_folder(index: Index) -> None:
    index.add("a/b.csv")
    q = index.queue()
    q.ack(claim(q))
    for path in ("a/new.csv", "fresh/folder/new.csv"):
        child = os.fork()
        if child == 0:
            time.sleep(0.3)
            index.add(path)
            os._exit(0)
        begun = time.monotonic()
        task = claim(q, 20)
        assert time.monotonic() - begun < 15
        assert task.id == path
        q.ack(task)
        os.waitpid(child, 0)


def test_removing_a_witness_makes_its_tile_a_task_again(index: Index) -> None:
    index.add("a.csv")
    q = index.queue()
    q.ack(claim(q))
    assert q.poll() == []
    (index.witnesses / "a.csv").unlink()
    assert q.counts() == dfq.Counts(pending=1)
    assert claim(index.queue()).id == "a.csv"


def test_a_failed_tile_is_a_dead_letter_and_can_be_put_back(index: Index) -> None:
    index.add("a/b.csv", "payload")
    q, other = index.queue(max_attempts=2), index.queue(max_attempts=2)
    for n in range(2):
        q.nack(claim(q), error=f"HTTP 50{n}")
    assert q.counts() == dfq.Counts(failed=1)
    info = q.get("a/b.csv")
    assert [e["error"] for e in info.errors] == ["HTTP 500", "HTTP 501"]
    assert q.poll() == other.poll() == []
    assert q.retry("a/b.csv") == ["a/b.csv"]
    task = claim(other)
    assert (task.attempt, task.payload) == (1, b"payload")
    other.ack(task)
    assert q.counts() == dfq.Counts(completed=1)


def test_a_tile_that_is_too_large_is_a_dead_letter_and_stays(index: Index) -> None:
    index.add("big.csv", b"x" * 2000)
    index.add("good.csv", b"y")
    q = index.queue(max_payload=1000)
    tasks = [task.id for task in q.poll(10)]
    assert tasks == ["good.csv"]
    assert q.counts().failed == 1
    assert "big.csv" in str(q.get("big.csv").error)
    assert (index.tiles / "big.csv").stat().st_size == 2000


def test_what_an_index_cannot_do_is_said(index: Index) -> None:
    index.add("a.csv")
    q = index.queue()
    for act in (
        lambda: q.push({}),
        lambda: q.push_many([{}]),
        lambda: q.cancel("a.csv"),
        lambda: q.purge(),
    ):
        with pytest.raises(dfq.Unsupported, match="target-tiles"):
            act()
    for task_id in ("../../etc/passwd", "/etc/passwd", "a//b", ".hidden", "nope"):
        with pytest.raises(dfq.TaskNotFound):
            q.get(task_id)
    assert q.counts() == dfq.Counts(pending=1)


def test_settings_that_do_not_fit_are_refused(index: Index) -> None:
    for wrong in (
        {"frontier": None},
        {"completed": None},
        {"completed": index.tiles},
        {"completed": index.tiles / "done"},
        {"frontier": index.folder / "root" / "tiles" / "frontier"},
        {"on_ack": "delete"},
    ):
        with pytest.raises(dfq.ConfigError):
            index.queue(**wrong)
    with pytest.raises(dfq.QueueUnavailable, match="is no folder"):
        index.queue(frontier=index.folder / "nowhere")
    with pytest.raises(dfq.ConfigError, match="index"):
        dfq.open_queue("other", index.folder / "root", refresh_after="30 d")
    index.queue()
    with pytest.raises(dfq.ConfigError, match="frontier_mode"):
        dfq.open_queue("tiles", index.folder / "root")


def test_a_killed_workers_tile_is_taken_over_at_once(index: Index) -> None:
    index.add("a.csv")
    q = index.queue()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        kept = claim(q)
        os.write(tell, kept.id.encode())
        signal.pause()
    assert os.read(told, 100) == b"a.csv"
    assert q.poll() == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    task = claim(q, 20)
    assert (task.attempt, task.token) == (2, 2)
    q.ack(task)
    os.close(told)
    os.close(tell)


def test_whatever_another_tools_witness_says_it_is_not_removed(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock)
    index.add("a.csv")
    task = claim(q)
    index.witnesses.mkdir(exist_ok=True)
    (index.witnesses / "a.csv").write_text('{"state": "cancelled", "stub": true}')
    with pytest.raises(dfq.LeaseLost):
        q.ack(task)
    for _ in range(10):
        clock.by += 3600
        assert q.poll() == []
    assert (index.witnesses / "a.csv").exists()


def test_a_tile_that_was_replaced_after_the_scan_is_not_an_empty_one(index: Index) -> None:
    for name in "abc":
        index.add(f"{name}.csv", "content")
    q = index.queue()
    first = claim(q)
    for name in "abc":
        file = index.tiles / f"{name}.csv"
        if file.name != first.id:
            file.unlink()
            file.symlink_to("/etc/passwd")
    assert q.poll(10) == []
    assert q.counts().completed == 0


def test_an_id_with_a_nul_is_no_path(index: Index) -> None:
    q = index.queue()
    for act in (q.get, q.retry):
        with pytest.raises(dfq.TaskNotFound):
            act("a\0b")


def test_a_path_that_leads_through_a_file_is_not_found(index: Index) -> None:
    index.add("a.csv")
    q = index.queue()
    for _ in ("pending", "completed"):
        for act in (q.get, q.retry):
            with pytest.raises(dfq.TaskNotFound):
                act("a.csv/x")
        for task in q.poll():
            q.ack(task)
    assert q.get("a.csv").state == "completed"
