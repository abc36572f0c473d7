"""Things in a queue's tree that are no regular files, or none of ours: not followed, not opened, in nobody's way."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from pathlib import Path

import pytest
from input_kit import STRANGERS, Place, look_at_everything, task_bytes, until, work_off_good

import dfq

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the queue logs. It goes no further: pytest cannot report a name that is not UTF-8."""
    messages: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        messages.append(record.getMessage())
        return False

    monkeypatch.setattr(logging.getLogger("dfq"), "filters", [keep])
    return messages


@pytest.fixture(params=STRANGERS)
def stranger(request: pytest.FixtureRequest) -> str:
    return request.param


def put(place: Place, stranger: str, path: Path) -> None:
    STRANGERS[stranger](path, place.outside)


def use_every_verb(queue: dfq.QueueManager, *ids: str) -> None:
    """Nothing that a caller may do crashes on a stranger; it may well say that there is no such task."""
    look_at_everything(queue, *ids)
    queue.retry()
    for task_id in ids:
        with contextlib.suppress(dfq.TaskNotFound):
            queue.retry(task_id)
        with contextlib.suppress(dfq.TaskExists):
            queue.push({}, id=task_id)
        with contextlib.suppress(dfq.TaskNotFound):
            queue.cancel(task_id)
    queue.purge()
    look_at_everything(queue, *ids)


def test_in_place_of_a_task(place: Place, stranger: str, said: list[str]) -> None:
    with place.open() as queue:
        put(place, stranger, place.task())
        queue.push({}, id="good")
        work_off_good(queue, "good")
        assert queue.poll() == []
        assert len([text for text in said if "bad.json" in text]) == 1, f"it is reported once: {said}"
        assert os.path.lexists(place.task())
        use_every_verb(queue, "bad")
        queue.push({}, id="good2")
        work_off_good(queue, "good2")


def test_in_place_of_a_scheduled_task(place: Place, stranger: str) -> None:
    with place.open() as queue:
        path = place.folder / "scheduled/20200101T000000Z/bad.json"
        path.parent.mkdir(parents=True)
        put(place, stranger, path)
        put(place, stranger, path.parent.parent / "20200101T000001Z")
        queue.push({}, id="good", delay=0.02)
        work_off_good(queue, "good")
        use_every_verb(queue, "bad")
        queue.push({}, id="good2", delay=0.02)
        work_off_good(queue, "good2")


def test_in_place_of_a_lease(place: Place, stranger: str) -> None:
    """The task is held for a while, as by a lease that cannot be read; then it is taken over, and completed."""
    with place.open() as queue:
        put(place, stranger, place.lease())
        queue.push({}, id="bad")
        queue.push({}, id="good")
        look_at_everything(queue, "bad")
        work_off_good(queue, "good", "bad")
        assert queue.get("bad").state == "completed"
        assert queue.get("bad").token == 2
        use_every_verb(queue, "bad")


def test_in_place_of_the_next_slot(place: Place, stranger: str) -> None:
    """A worker that finds the slot of its completion taken has lost its lease, whatever has taken it."""
    with place.open(lease=0.5) as queue:
        queue.push({}, id="bad")
        (task,) = queue.poll()
        put(place, stranger, place.path("active-leases", suffix="~2.lease"))
        with pytest.raises(dfq.LeaseLost):
            queue.ack(task)
        work_off_good(queue, "bad")
        use_every_verb(queue, "bad")


def test_in_place_of_a_witness(place: Place, stranger: str) -> None:
    with place.open() as queue:
        put(place, stranger, place.path("completed", "old"))
        put(place, stranger, place.path("retired", "old2"))
        queue.push({}, id="good")
        work_off_good(queue, "good")
        use_every_verb(queue, "old", "old2")


def test_a_witness_that_is_none_does_not_make_a_task_vanish(place: Place, stranger: str) -> None:
    with place.open() as queue:
        queue.push({}, id="bad")
        content = place.task().read_bytes()
        put(place, stranger, place.path("completed"))
        queue.push({}, id="good")
        for _ in range(3):
            with contextlib.suppress(dfq.QueueError):
                for task in queue.poll(10, wait=0.05):
                    queue.ack(task)
        assert queue.get("good").state == "completed"
        assert place.task().read_bytes() == content


def test_in_place_of_a_dead_letter(place: Place, stranger: str) -> None:
    with place.open(max_attempts=1) as queue:
        put(place, stranger, place.path("failed"))
        put(place, stranger, place.path("failed", "stray"))
        queue.push({}, id="bad")
        (task,) = queue.poll()
        queue.nack(task, error="no use")
        assert queue.get("bad").state == "failed"
        look_at_everything(queue, "bad", "stray")
        assert queue.retry("bad") == ["bad"]
        work_off_good(queue, "bad")
        use_every_verb(queue, "bad", "stray")


def test_in_place_of_queue_json(place: Place, stranger: str) -> None:
    place.open().close()
    meta = place.folder / "queue.json"
    meta.unlink()
    put(place, stranger, meta)
    with pytest.raises(dfq.QueueUnavailable, match=r"queue\.json") as refused:
        place.open()
    assert ("empty" in str(refused.value)) == (meta.is_file() and not meta.is_symlink())


@pytest.mark.parametrize(
    "top",
    [
        "frontier/5",
        "active-leases",
        "completed",
        "failed",
    ],
)
def test_a_link_in_place_of_a_shard_is_not_followed(place: Place, top: str) -> None:
    """The folder behind it holds files with the right names; none of them is read, changed or added to."""
    with place.open() as queue:
        shard = place.path(top.partition("/")[0], lane="5" if "/" in top else "").parent
        shard.rmdir()
        shard.symlink_to(place.outside)
        if top != "frontier/5":
            place.task().write_bytes(task_bytes())
        elsewhere = (f"good{n}" for n in range(100) if place.task(f"good{n}").parent.name != shard.name)
        left = {queue.push({}, id=task_id) for task_id in itertools.islice(elsewhere, 5)}

        def all_done() -> bool:
            with contextlib.suppress(dfq.QueueUnavailable):  # it says so for the task that has no place
                for task in queue.poll(10, wait=0.02):
                    with contextlib.suppress(dfq.QueueUnavailable, dfq.LeaseLost):
                        queue.ack(task)
                        left.discard(task.id)
            return not left

        until(all_done)
        for verb in (queue.counts, queue.purge, queue.retry, lambda: list(queue.tasks())):
            with contextlib.suppress(dfq.QueueUnavailable):
                verb()
        for one in (queue.get, queue.cancel, queue.retry, lambda i: queue.push({}, id=i)):
            with contextlib.suppress(dfq.QueueUnavailable, dfq.TaskNotFound, dfq.TaskExists):
                one("bad")
    place.check_outside()


@pytest.mark.parametrize(
    "filename",
    [
        "tile.jsonl",
        "notes.txt",
        "README",
        ".hidden.json",
        ".tmp-1-abc",
        "no%2fname.json",
        "~2.json",
        "a~b.json",
        "bad%hxyz.json",
        ".json",
        "x.json.swp",
        "x.JSON",
        "\udcff.json",
        "\udcff%h" + "0" * 32 + ".json",
        "\n.json",
    ],
    ids=ascii,
)
def test_unknown_files_are_left_alone(place: Place, filename: str, said: list[str]) -> None:
    with place.open() as queue:
        planted = []
        for top in ("frontier/5", "active-leases", "completed", "failed", "retired"):
            name, _, lane = top.partition("/")
            planted.append(place.path(name, lane=lane).parent / filename)
        planted += [place.folder / filename, place.folder / "frontier" / filename]
        bucket = place.folder / "scheduled/20200101T000000Z"
        bucket.mkdir(parents=True)
        planted += [bucket / filename, bucket.parent / filename]
        for path in planted:
            path.write_bytes(b"not a task")
        queue.push({}, id="bad")
        queue.push({}, id="good")
        work_off_good(queue, "good", "bad")
        assert queue.poll(wait=0.1) == []
        look_at_everything(queue, "bad")
        queue.retry()
        assert queue.purge() == 0
        assert queue.counts() == dfq.Counts(completed=2)
        assert [p for p in planted if p.read_bytes() != b"not a task"] == []
        if not filename.startswith("."):
            assert [text for text in said if "is no task" in text]
