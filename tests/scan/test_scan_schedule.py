"""Delayed tasks: in few folders, cheap to find and to cancel, never late, and never missed on their way."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scan_kit import PATIENCE, Place, ids, odd

import dfq
from dfq.providers.filesystem import schedule
from dfq.providers.filesystem.queue import FilesystemQueue
from dfq.queue import Push
from dfq.tree import SCHEDULED, Tree, is_bucket

pytestmark = pytest.mark.timeout(60)


def windows(place: Place) -> list[str]:
    return sorted(os.listdir(place.folder / SCHEDULED))


# -- folders -------------------------------------------------------------------------------------------


def test_whatever_is_scheduled_lies_in_some_hundreds_of_folders() -> None:
    chance, now, tree = random.Random(1), 1_790_000_000.0, Tree(16)
    for longest, most in ((3600, 361), (86400, 361 + 144), (7 * 86400, 361 + 144 + 145), (90 * 86400, 750)):
        found = {
            tree.scheduled("x", now + d, d).split("/")[1] for d in (chance.random() * longest for _ in range(50_000))
        }
        assert len(found) <= most
        assert all(map(is_bucket, found))


@pytest.mark.parametrize("delay", [0.01, 9, 3600, 86_400, 604_800, 1e8])
def test_a_folder_is_named_by_the_start_of_its_window(delay: float) -> None:
    tree, due = Tree(16), 1_790_000_000.0 + delay
    path = tree.scheduled("x", due, delay)
    start = path.split("/")[1]
    assert start <= tree.scheduled("x", due + 0.0, 0).split("/")[1], "so that a listing is in order"
    assert path.endswith("/x.json")


def test_a_delayed_push_makes_others_read_its_window_only(place: Place) -> None:
    pusher, worker = place.open(), place.open()
    for n in range(30):
        pusher.push({}, id=f"t{n}", delay=100 * (n + 1))
    place.settle()
    worker.poll()
    odd(worker).forget()
    pusher.push({}, id="new", delay=50)
    worker.poll()
    assert [path for call, path in odd(worker).paths if call == "open"] == [pusher._schedule.find("new")]
    assert len([path for call, path in odd(worker).paths if call == "scan" and path.startswith("scheduled/")]) == 1


def test_a_push_into_a_known_window_is_seen(place: Place) -> None:
    pusher, worker = place.open(), place.open()
    pusher.push({}, id="a", delay=1e7)
    place.settle()
    worker.poll()
    pusher.push({}, id="b", delay=1e7)
    worker.poll()
    assert len(windows(place)) == 1
    place.clock.ahead += 1e7 + 1
    assert ids(worker.poll(5)) == ["a", "b"]


def test_each_task_of_a_window_waits_for_its_own_time(place: Place) -> None:
    pusher, worker = place.open(), place.open()
    for n in range(3):
        pusher.push({}, id=f"t{n}", delay=1e7 + n * 100)
    assert len(windows(place)) == 1
    place.clock.ahead += 1e7 + 1
    for n in range(3):
        assert ids(worker.poll(5)) == [f"t{n}"]
        place.clock.ahead += 100


def test_no_folder_is_remembered_for_ever_and_none_is_left(place: Place) -> None:
    queue = place.open()
    for n in range(5):
        queue.push({}, id=f"t{n}", delay=5)
        place.clock.ahead += 20
        (task,) = queue.poll()
        queue.ack(task)
    assert not [path for path in queue._store._ready | queue._store._real if path.startswith(f"{SCHEDULED}/")]
    assert windows(place) == []
    assert queue._schedule._buckets == {} or queue.poll() == []


def test_cancel_and_purge_leave_no_empty_folders(place: Place) -> None:
    queue = place.open()
    for n in range(5):
        queue.push({}, id=f"t{n}", delay=100 * (n + 1))
    queue.cancel("t0")
    assert len(windows(place)) == 4
    assert queue.purge() == 4
    assert windows(place) == []


def test_an_empty_folder_of_somebody_who_died_is_removed(place: Place) -> None:
    queue = place.open()
    queue.push({}, id="a", delay=100)
    (place.folder / SCHEDULED / "20200101T000000Z").mkdir()
    queue.poll()
    assert len(windows(place)) == 1
    assert queue.get("a").state == "scheduled"


@pytest.mark.parametrize("durability", ["fast", "full"])
def test_a_window_may_be_removed_under_a_push(place: Place, durability: str) -> None:
    queue = place.open(durability=durability)
    link, left = odd(queue).link, [1, 1, 1]

    def removed_first(fd: int, path: str) -> None:
        if path.startswith(f"{SCHEDULED}/") and left:
            left.pop()
            os.rmdir(place.folder / os.path.dirname(path))
            if len(left) == 1:  # and made anew by somebody else in the same moment
                with pytest.raises(FileNotFoundError):
                    link(fd, path)
                os.mkdir(place.folder / os.path.dirname(path))
                raise FileNotFoundError(2, "gone", path)
        link(fd, path)

    queue._disk.link = removed_first  # type: ignore[method-assign]
    queue.push({}, id="a", delay=100)
    assert left == []
    assert queue.get("a").state == "scheduled"


def test_a_durable_push_makes_its_window_durable_even_if_others_made_it(place: Place) -> None:
    queue = place.open(durability="full")
    queue.push({}, id="a", delay=1e7)
    synced: list[str] = []
    fsync_dir = queue._disk.fsync_dir
    queue._disk.fsync_dir = lambda path: (synced.append(path), fsync_dir(path))[1]  # type: ignore[func-returns-value,method-assign]
    queue.push({}, id="b", delay=1e7)
    assert synced[-2:] == [f"{SCHEDULED}/{windows(place)[0]}", SCHEDULED]


def test_folders_of_single_seconds_are_read_as_well(place: Place) -> None:
    queue = place.open()
    queue.push({}, id="a", delay=5)
    (bucket,) = windows(place)
    (place.folder / SCHEDULED / bucket).rename(place.folder / SCHEDULED / "20200101T000001Z")
    place.clock.ahead += 6
    assert ids(queue.poll()) == ["a"]


# -- never late ----------------------------------------------------------------------------------------


def test_a_task_that_comes_within_a_tick_of_the_last_look_is_not_late(place: Place) -> None:
    """The folder's time is the same before and after, and nothing but the worker itself will look again."""
    pusher, worker = place.open(), place.open()
    frozen = int(place.clock.wall() * 1e9) // 10 * 10 + 1
    odd(worker).time_of = lambda path, mtime_ns: frozen
    still = place.clock.elapsed()
    worker._schedule._clock = type("Still", (), {"elapsed": lambda _: still, "wall": lambda _: place.clock.wall()})()
    pusher.push({}, id="a", delay=0.4)
    worker.poll()
    pusher.push({}, id="b", delay=0.4)
    worker.poll()
    worker._schedule._clock = place.clock
    began, got = time.monotonic(), []
    while len(got) < 2:
        assert time.monotonic() < began + PATIENCE / 2, f"only {got} came"
        got += ids(worker.poll(5, wait=1))
    assert sorted(got) == ["a", "b"]


def test_many_tasks_in_one_window_are_learned_a_part_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "AT_ONCE", 4)
    monkeypatch.setattr(schedule, "MOVES_AT_ONCE", 3)
    place.open().push_many([Push({}, f"t{n:02}", delay=1e7) for n in range(20)])
    worker = place.open()
    worker.poll()
    assert sum(len(bucket.known) for bucket in worker._schedule._buckets.values()) == 4
    assert worker._schedule.next_due() <= place.clock.elapsed(), "it goes on at once"
    for _ in range(5):
        worker.poll()
    place.clock.ahead += 1e7 + 1
    got: list[str] = []
    for _ in range(10):
        got += ids(worker.poll(100))
    assert sorted(got) == [f"t{n:02}" for n in range(20)]


def test_memory_holds_the_earliest_and_learns_the_others_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "REMEMBERED", 6)
    pusher, worker = place.open(), place.open(lease=86_400)
    for n in range(10):
        pusher.push({}, id=f"late{n}", delay=1000 + 100 * n)
    worker.poll()
    pusher.push({}, id="early", delay=100)
    worker.poll()
    assert sum(len(bucket.known) for bucket in worker._schedule._buckets.values()) <= 6
    place.clock.ahead += 101
    assert ids(worker.poll(20)) == ["early"]
    got: list[str] = []
    for _ in range(30):
        place.clock.ahead += 100
        got += ids(worker.poll(20))
    assert sorted(got) == [f"late{n}" for n in range(10)]


def test_tasks_of_another_boot_go_by_the_wall_clock_as_it_is_now(place: Place) -> None:
    pusher, worker = place.open(), place.open()
    pusher.push({}, id="a", delay=1000)
    worker._machine = worker._schedule._machine = type(worker._machine)("pi", "another boot", 1, "w")
    assert worker.poll() == []
    place.clock.wall_off += 2000
    place.clock.ahead += schedule.RELOOK
    assert ids(worker.poll()) == ["a"]


# -- on its way ----------------------------------------------------------------------------------------


@pytest.fixture
def due(place: Place) -> FilesystemQueue:
    """A queue with a task "x" that is due, and not moved yet."""
    queue = place.open()
    queue.push({}, id="x", delay=1, priority=7)
    place.clock.ahead += 5
    return queue


def promoted_before(place: Place, queue: FilesystemQueue, call: str, path: Callable[[str], bool]) -> None:
    """Let another worker move what is due just before a certain call of this queue, once."""
    other, left = place.open(), [1]

    def refuse(called: str, on: str) -> bool:
        if called == call and path(on) and left:
            left.pop()
            other._schedule.promote()
        return False

    odd(queue).refuse = refuse


CALLS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "listing the schedule": ("scan", lambda path: path == SCHEDULED),
    "looking into its folder": ("look", lambda path: path.startswith(f"{SCHEDULED}/")),
    "listing the frontier": ("scan", lambda path: path == "frontier"),
    "reading it": ("open", lambda path: path.startswith(f"{SCHEDULED}/")),
    "linking it": ("link_path", lambda path: path.startswith("frontier/")),
}


@pytest.mark.parametrize("moment", CALLS)
def test_a_task_that_is_moved_meanwhile_is_cancelled(place: Place, due: FilesystemQueue, moment: str) -> None:
    promoted_before(place, due, *CALLS[moment])
    assert due.cancel("x") == ["x"]
    assert due.get("x").cancelled
    assert place.open().poll() == []


@pytest.mark.parametrize("moment", CALLS)
def test_a_task_that_is_moved_meanwhile_is_found(place: Place, due: FilesystemQueue, moment: str) -> None:
    promoted_before(place, due, *CALLS[moment])
    assert due.get("x").state in ("pending", "scheduled")


@pytest.mark.parametrize("moment", CALLS)
def test_a_task_that_is_moved_meanwhile_is_purged(place: Place, due: FilesystemQueue, moment: str) -> None:
    promoted_before(place, due, *CALLS[moment])
    assert due.purge() == 1
    assert place.open().counts() == dfq.Counts()


@pytest.mark.parametrize("moment", CALLS)
def test_a_task_that_is_moved_meanwhile_is_not_pushed_again(place: Place, due: FilesystemQueue, moment: str) -> None:
    promoted_before(place, due, *CALLS[moment])
    with pytest.raises(dfq.TaskExists):
        due.push({}, id="x", priority=3)


def test_a_cancelled_task_never_has_a_slot_without_an_entry_in_the_frontier(place: Place, due: FilesystemQueue) -> None:
    made: list[str] = []
    create = due._disk.create

    def watched(path: str) -> int:
        made.append(path)
        assert (place.folder / "frontier/7" / due._tree.shard("x") / "x.json").exists()
        return create(path)

    due._disk.create = watched  # type: ignore[method-assign]
    due.cancel("x")
    assert len(made) == 1
    assert windows(place) == []


@pytest.mark.parametrize("verb", ["cancel", "purge"])
def test_all_entries_of_a_name_go_together(place: Place, verb: str) -> None:
    queue = place.open()
    queue.push({}, id="x")
    original = place.folder / queue._tree.entry("x", 5).path
    others: list[Path] = [place.folder / queue._tree.entry("x", 8).path]
    others += [place.folder / SCHEDULED / f"203{n}0101T000000Z/x.json" for n in range(2)]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(original, path)
    call: Any = queue.purge if verb == "purge" else lambda: queue.cancel("x")
    call()
    assert not [path for path in (original, *others) if path.exists()]
    assert queue.counts() == dfq.Counts()
