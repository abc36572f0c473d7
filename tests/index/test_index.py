"""A tree of files that another tool owns, worked off by leases (ADR 019)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from index_kit import Index

import dfq

DAY = 86400.0
ODD = [
    "29.5/-98.5/dentist.csv",
    "29.5/-98.5/24 hour plumber",
    "flat.jsonl",
    "a/b/c/d/e/f.json",
    "-dash/~tilde.txt",
    "caf\u00e9/%2F.csv",
    "no suffix",
]


def claim(queue: dfq.QueueManager, wait: float = 5) -> dfq.Task:
    (task,) = queue.poll(wait=wait)
    return task


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


class Ahead:
    """A clock that can be put forward."""

    def __init__(self) -> None:
        self.by = 0.0

    def wall(self) -> float:
        return time.time() + self.by

    def elapsed(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.by


def test_a_witness_that_is_too_old_makes_its_tile_due_again(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a/b.csv", "1")
    first = claim(q)
    q.ack(first, result=1)
    clock.by += 29 * DAY
    assert q.poll() == []
    assert q.counts() == dfq.Counts(completed=1)
    clock.by += 2 * DAY
    assert q.counts() == dfq.Counts(pending=1)
    second = claim(q)
    assert (second.id, second.attempt) == ("a/b.csv", 1)
    assert second.token > first.token
    q.ack(second, result=2)
    witness = json.loads((index.witnesses / "a/b.csv").read_text())
    assert (witness["result"], witness["epoch"]) == (2, 1)
    assert list(index.witnesses.rglob(".*")) == []


def test_a_late_worker_of_an_old_epoch_completes_nothing(index: Index) -> None:
    clock = Ahead()
    late, q = (index.queue_with(clock, refresh_after=30 * DAY, lease=60 * DAY) for _ in range(2))
    index.add("a.csv")
    old = claim(late)
    # Another tool (or a worker that took it over and is done) witnessed the tile meanwhile, long ago.
    index.witnesses.mkdir(exist_ok=True)
    (index.witnesses / "a.csv").write_text('{"epoch": 0}')
    clock.by += 31 * DAY
    new = claim(q)
    assert new.token > old.token
    with pytest.raises(dfq.LeaseLost):
        late.ack(old, result="late")
    q.ack(new, result="new")
    assert json.loads((index.witnesses / "a.csv").read_text())["result"] == "new"


def test_a_view_that_was_set_back_is_repaired_and_nothing_runs_twice(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a.csv")
    q.ack(claim(q), result=0)
    old = (index.witnesses / "a.csv").read_bytes()
    clock.by += 31 * DAY
    q.ack(claim(q), result=1)
    (index.witnesses / "a.csv").write_bytes(old)  # as a worker would that slept since before the second run
    assert index.queue_with(clock, refresh_after=30 * DAY).poll() == []
    assert json.loads((index.witnesses / "a.csv").read_text())["result"] == 1


@contextlib.contextmanager
def tmpfs(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("durability", ["full", "fast"])
def test_the_witnesses_may_lie_on_another_filesystem(index: Index, durability: str) -> None:
    with tmpfs(index.folder / "elsewhere") as elsewhere:
        index.witnesses = elsewhere / "scraped"
        for n in range(20):
            index.add(f"{n % 3}/{n}.csv", str(n))
        q, other = index.queue(durability=durability), index.queue(durability=durability)
        lost = claim(q)
        (slot,) = (index.folder / "root/tiles/active-leases").rglob("*.lease")
        done = 0
        while tasks := other.poll(5):
            for task in tasks:
                other.ack(task, result="other")
                done += 1
        assert done == 19
        assert slot.exists()
        q.ack(lost, result="q")
        with pytest.raises(dfq.LeaseLost):
            q.ack(lost, result="again")
        assert q.counts() == dfq.Counts(completed=20)
        assert list(elsewhere.rglob(".*")) == []
        index.close()


def test_a_completion_that_was_cut_short_is_finished_on_the_other_filesystem(index: Index) -> None:
    with tmpfs(index.folder / "elsewhere") as elsewhere:
        index.witnesses = elsewhere / "scraped"
        index.add("a/b.csv")
        q = index.queue()
        child = os.fork()
        if child == 0:
            task = claim(q)

            def die(*_: object) -> bool:
                os.kill(os.getpid(), signal.SIGKILL)
                return False

            q._store._name_elsewhere = die  # type: ignore[method-assign]
            q.ack(task, result="mine")
        os.waitpid(child, 0)
        assert not (index.witnesses / "a/b.csv").exists()
        assert q.poll(wait=0.2) == []
        assert json.loads((index.witnesses / "a/b.csv").read_text())["result"] == "mine"
        index.close()


def test_many_tiles_poll_like_few(index: Index) -> None:
    """What a poll does is counted, not timed: it must not follow the size of the tree."""

    def calls(tiles: int) -> tuple[float, int]:
        here = Index(Path(index.folder / f"of-{tiles}"))
        for n in range(tiles):
            here.add(f"{n % 20}/{n // 20 % 20}/{n}.csv", "x")
        q = here.queue()
        q.ack(claim(q))  # the tree is read once
        counted = [0]
        scan = q._disk.scan

        def counting(path: str, **options: bool) -> object:
            counted[0] += path.startswith("@")
            return scan(path, **options)

        q._disk.scan = counting  # type: ignore[method-assign, assignment]
        for _ in range(100):
            q.ack(claim(q))
        here.close()
        return counted[0], sum(len(s.blocked) for lane in q._frontier._lanes.values() for s in lane.shards.values())

    (index.folder / "of-1000").mkdir()
    (index.folder / "of-10000").mkdir()
    few, many = calls(1000), calls(10_000)
    print(f"listings of the trees in 100 polls: {few[0]} of 1,000 tiles, {many[0]} of 10,000")
    assert many[0] <= max(few[0], 60) * 2
    assert many[1] < 1000


def test_an_empty_poll_of_a_large_tree_does_not_walk_it(index: Index) -> None:
    for n in range(1200):
        (index.tiles / f"{n}").mkdir()
    q = index.queue()
    assert q.poll() == []
    looked = [0]
    look = q._disk.look

    def counting(path: str) -> object:
        looked[0] += path.startswith("@")
        return look(path)

    q._disk.look = counting  # type: ignore[method-assign, assignment]
    begun = time.monotonic()
    polls = 0
    while time.monotonic() - begun < 1:
        assert q.poll() == []
        polls += 1
    assert looked[0] < 1200 * max(20, polls / 3)


def test_the_tree_may_be_moved_away_and_come_back(index: Index) -> None:
    index.add("a.csv")
    q = index.queue()
    q.ack(claim(q))
    shutil.move(index.tiles, index.folder / "away")
    with contextlib.suppress(dfq.QueueUnavailable):
        assert q.poll() == []
    shutil.move(index.folder / "away", index.tiles)
    index.add("b.csv")
    end = time.monotonic() + 20
    while not (tasks := _try(q)):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert tasks[0].id == "b.csv"


def _try(q: dfq.QueueManager) -> list[dfq.Task]:
    try:
        return q.poll()
    except dfq.QueueUnavailable:
        return []


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


def test_folders_of_witnesses_may_be_removed_at_any_time(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("29.5/-98.5/a.csv")
    q.ack(claim(q))
    clock.by += 31 * DAY
    again = claim(q)
    shutil.rmtree(index.witnesses / "29.5")
    q.ack(again, result="again")
    index.add("29.5/-98.5/b.csv")
    shutil.rmtree(index.witnesses / "29.5")
    tasks = q.poll(10)
    for task in tasks:
        q.ack(task)
    assert (index.witnesses / "29.5/-98.5/b.csv").exists()


def test_a_file_in_place_of_a_folder_of_witnesses_keeps_nobody_waiting(index: Index) -> None:
    index.add("bad/a.csv")
    index.add("good.csv")
    index.witnesses.mkdir()
    (index.witnesses / "bad").write_text("a file")
    q = index.queue()
    for _ in range(3):
        for task in q.poll(10):
            assert task.id == "good.csv"
            q.ack(task)
    assert (index.witnesses / "good.csv").exists()


def test_a_tile_that_was_redone_by_hand_is_not_overwritten_by_an_older_run(index: Index) -> None:
    clock = Ahead()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    index.add("a.csv")
    q.ack(claim(q), result=0)
    clock.by += 31 * DAY
    q.ack(claim(q), result=1)
    (index.witnesses / "a.csv").unlink()
    q = index.queue_with(clock, refresh_after=30 * DAY)
    clock.by += 1
    q.ack(claim(q), result=2)
    clock.by += 31 * DAY
    q.ack(claim(q), result=3)
    assert json.loads((index.witnesses / "a.csv").read_text())["result"] == 3


def test_an_id_with_a_nul_is_no_path(index: Index) -> None:
    q = index.queue()
    for act in (q.get, q.retry):
        with pytest.raises(dfq.TaskNotFound):
            act("a\0b")
