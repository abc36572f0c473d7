"""Where the two trees of an index lie, and what may happen to their folders."""

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
from index_kit import DAY, Ahead, Index, claim

import dfq


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


def _try(q: dfq.QueueManager) -> list[dfq.Task]:
    try:
        return q.poll()
    except dfq.QueueUnavailable:
        return []
