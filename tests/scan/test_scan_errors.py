"""A disk that fails once, or in one folder: nothing stays unseen, and the rest of the queue goes on."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from scan_kit import Place, ids, odd

import dfq
from dfq.providers.filesystem.complaints import SOON
from dfq.providers.filesystem.foldertime import EVERYWHERE
from dfq.queue import Push
from dfq.tree import Entry

pytestmark = pytest.mark.timeout(60)

MANY = [f"t{n:02}" for n in range(40)]


def push_many(place: Place, names: list[str] = MANY, **options: int) -> None:
    place.open().push_many([Push({}, name, **options) for name in names])


@pytest.mark.parametrize("call", ["look", "scan"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ESTALE])
def test_tasks_of_a_shard_that_failed_once_are_served_soon(place: Place, call: str, code: int) -> None:
    push_many(place)
    place.settle()
    worker = place.open()
    bad: list[str] = []

    def refuse(called: str, path: str) -> bool:
        if called == call and path.count("/") == 2 and path.startswith("frontier/") and len(bad) < 1:
            bad.append(path)
            return True
        return False

    odd(worker).refuse, odd(worker).code = refuse, code
    served = ids(worker.poll(100))
    assert 0 < len(served) < len(MANY), "the other shards are not kept waiting"
    assert len(bad) == 1
    place.clock.ahead += SOON
    assert sorted(served + ids(worker.poll(100))) == MANY


def test_an_idle_worker_looks_again_by_itself_at_what_failed(place: Place) -> None:
    push_many(place, ["a"])
    place.open().push({}, id="b", priority=9)
    place.settle()
    worker = place.open()
    assert ids(worker.poll(wait=0.01)) == ["b"]
    worker._frontier.start_over()
    left = [1]
    odd(worker).refuse = lambda call, path: (
        path.startswith("frontier/5/") and call == "scan" and bool(left and left.pop())
    )
    assert ids(worker.poll(2, wait=60)) == ["a"]


def test_a_folder_that_stays_unreadable_is_told_of_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    push_many(place)
    worker = place.open()
    odd(worker).refuse = lambda call, path: path == "frontier/5/2" and call == "scan"
    served = []
    for _ in range(5):
        served += ids(worker.poll(100))
        place.clock.ahead += SOON
    assert sorted(served) == [name for name in MANY if worker._tree.shard(name) != "2"]
    told = [r.getMessage() for r in caplog.records if "frontier/5/2" in r.getMessage() and r.levelno == logging.WARNING]
    assert len(told) == 1
    assert str(place.folder / "frontier/5/2") in told[0]


def test_a_disk_that_can_read_nothing_is_no_empty_queue(place: Place) -> None:
    push_many(place)
    worker = place.open()
    odd(worker).refuse = lambda call, path: path.startswith("frontier/5/")
    for _ in range(2):
        with pytest.raises(dfq.QueueUnavailable, match="frontier/5"):
            worker.poll()
    odd(worker).refuse = lambda call, path: False
    assert ids(worker.poll(100)) == MANY


def test_every_few_minutes_a_worker_looks_whatever_the_times_say(place: Place) -> None:
    worker = place.open(shards=1)
    push_many(place, ["a"])
    push_many(place, ["d"], delay=1)
    odd(worker).time_of = lambda path, mtime_ns: 1_234_567_890_123_456_789  # a filesystem whose times never change
    assert ids(worker.poll(5)) == ["a"]
    assert worker.poll() == []
    push_many(place, ["b"])
    push_many(place, ["c"], delay=1)
    assert worker.poll() == [], "this is what the times of folders are for"
    place.clock.ahead += EVERYWHERE
    ids(worker.poll(5))
    place.clock.ahead += 1
    ids(worker.poll(5))
    assert worker.counts() == dfq.Counts(leased=4)


def test_a_batch_that_is_cut_short_by_an_error_is_handed_out(place: Place) -> None:
    push_many(place, ["a", "b"])
    worker = place.open()
    real = worker._frontier.candidates

    def failing() -> Iterator[Entry]:
        yield next(real())
        raise OSError(errno.EIO, os.strerror(errno.EIO), "frontier")

    worker._frontier.candidates = failing  # type: ignore[method-assign]
    first = worker.poll(2)
    assert len(first) == 1
    assert first[0].attempt == 1


def test_an_error_while_clearing_up_does_not_drop_what_was_claimed(place: Place) -> None:
    push_many(place, ["a"])
    worker = place.open()
    worker._housekeeping._last = -1e9
    odd(worker).refuse = lambda call, path: call == "scan" and path in (".", "active-leases")
    assert ids(worker.poll()) == ["a"]


@pytest.mark.parametrize("call", ["look", "scan", "open"])
def test_a_window_of_the_schedule_that_cannot_be_read_keeps_no_other_waiting(place: Place, call: str) -> None:
    pusher = place.open()
    pusher.push({}, id="soon", delay=5)
    pusher.push({}, id="later", delay=300)
    pusher.push({}, id="now")
    bad = os.path.dirname(str(pusher._schedule.find("soon")))
    worker = place.open()
    odd(worker).refuse = lambda called, path: called == call and path.startswith(bad)
    assert ids(worker.poll(5)) == ["now"]
    place.clock.ahead += 301
    assert ids(worker.poll(5)) == ["later"]
    odd(worker).refuse = lambda called, path: False
    place.clock.ahead += SOON
    assert ids(worker.poll(5)) == ["soon"]


def test_a_schedule_that_cannot_be_listed_does_not_stop_the_frontier(place: Place) -> None:
    pusher = place.open()
    pusher.push({}, id="later", delay=1)
    pusher.push({}, id="now")
    worker = place.open()
    odd(worker).refuse = lambda called, path: called == "scan" and path == "scheduled"
    assert ids(worker.poll(5)) == ["now"]
    odd(worker).refuse = lambda called, path: False
    place.clock.ahead += SOON + 1
    assert ids(worker.poll()) == ["later"]


def test_a_task_that_cannot_be_moved_keeps_no_other_waiting(place: Place) -> None:
    pusher = place.open()
    for name in ("a", "b"):
        pusher.push({}, id=name, delay=1)
    worker = place.open()
    odd(worker).refuse = lambda called, path: called == "link_path" and path.endswith("/a.json")
    place.clock.ahead += 2
    assert ids(worker.poll(5)) == ["b"]
    odd(worker).refuse = lambda called, path: False
    place.clock.ahead += SOON
    assert ids(worker.poll(5)) == ["a"]


# -- what is no folder ---------------------------------------------------------------------------------


def moved_away(path: Path, how: str, outside: Path) -> None:
    outside.mkdir()
    path.rename(outside / path.name)
    if how == "link":
        path.symlink_to(outside / path.name)
    else:
        path.write_text("")


@pytest.mark.parametrize("how", ["link", "file"])
def test_a_frontier_that_is_no_folder_is_no_empty_queue(place: Place, tmp_path: Path, how: str) -> None:
    push_many(place)
    worker = place.open()
    ids(worker.poll())
    moved_away(place.folder / "frontier", how, tmp_path / "outside")
    for queue in (worker, place.open()):
        place.clock.ahead += 1
        with pytest.raises(dfq.QueueUnavailable, match=str(place.folder / "frontier")):
            queue.poll(100, wait=0)
        with pytest.raises(dfq.QueueUnavailable, match="frontier"):
            queue.counts()
        with pytest.raises(dfq.QueueUnavailable, match="frontier"):
            queue.get("nothing")


@pytest.mark.parametrize("how", ["link", "file"])
@pytest.mark.parametrize("part", ["frontier/5", "frontier/5/2"])
def test_a_lane_or_shard_that_is_no_folder_is_told_of_once(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str, how: str
) -> None:
    push_many(place)
    place.open().push({}, id="other", priority=7)
    moved_away(place.folder / part, how, tmp_path / "outside")
    worker = place.open()
    served = ids(worker.poll(100))
    worker.poll()
    hidden = {name for name in MANY if part == "frontier/5" or worker._tree.shard(name) == "2"}
    assert set(served) == {*MANY, "other"} - hidden
    assert len([r for r in caplog.records if str(place.folder / part) + " " in r.getMessage()]) == 1


@pytest.mark.parametrize("what", ["folder", "link", "pipe"])
def test_what_is_in_the_way_of_a_witness_is_told_of_once(
    place: Place, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    queue = place.open()
    queue.push({}, id="a")
    path = place.folder / queue._tree.completed("a")
    path.parent.mkdir(parents=True)
    {"folder": path.mkdir, "link": lambda: path.symlink_to("/nowhere"), "pipe": lambda: os.mkfifo(path)}[what]()
    for _ in range(3):
        assert queue.poll() == []
        place.clock.ahead += 61
    assert queue.get("a").state == "pending"
    assert queue.counts() == dfq.Counts(pending=1)
    assert len([r for r in caplog.records if str(path) in r.getMessage()]) == 1
    path.rmdir() if what == "folder" else path.unlink()
    assert ids(queue.poll()) == ["a"]
