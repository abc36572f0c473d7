"""Dead letters cost nothing, and a retry by another process is noticed."""

from __future__ import annotations

import pytest
from scan_kit import Place, Polling, ids, odd, until

from dfq.providers.filesystem.foldertime import EVERYWHERE
from dfq.providers.filesystem.frontier import DEAD_PAUSE
from dfq.providers.filesystem.queue import FilesystemQueue
from dfq.queue import Push

pytestmark = pytest.mark.timeout(60)

DEAD = 60


@pytest.fixture
def graves(place: Place) -> FilesystemQueue:
    """A queue of one shard with some dead tasks."""
    queue = place.open(shards=1, max_attempts=1)
    queue.push_many([Push({}, f"dead{n}") for n in range(DEAD)])
    for task in queue.poll(DEAD):
        queue.nack(task, "boom")
    return queue


def test_a_new_task_in_a_shard_does_not_stir_its_dead(place: Place, graves: FilesystemQueue) -> None:
    worker = place.open()
    assert worker.poll() == []
    for n in range(3):
        graves.push({}, id=f"new{n}")
        odd(worker).forget()
        (task,) = worker.poll()
        worker.ack(task)
        assert worker.poll() == []
        assert odd(worker).calls["open"] < 20, "the dead are not opened"


def test_an_idle_worker_notices_a_retry_at_once(place: Place, graves: FilesystemQueue) -> None:
    worker = place.open()
    worker.poll(wait=0.05)
    thread = Polling(worker)
    until(lambda: worker._idle._taken, "it sleeps")
    graves.retry("dead7")
    assert ids(thread.result()) == ["dead7"]


def test_a_busy_worker_notices_a_retry_within_a_second(place: Place, graves: FilesystemQueue) -> None:
    worker = place.open()
    assert worker.poll() == []
    graves.push_many([{"n": n} for n in range(20)])
    worker.ack(worker.poll()[0])
    graves.retry("dead7")
    assert DEAD_PAUSE <= 1
    place.clock.ahead += DEAD_PAUSE
    assert ids(worker.poll()) == ["dead7"], "before those that are in its buffer"


def test_a_retry_whose_process_died_half_way_is_noticed_in_the_end(place: Place, graves: FilesystemQueue) -> None:
    worker = place.open()
    assert worker.poll() == []

    class Killed(BaseException):
        pass

    def refuse(call: str, path: str) -> bool:
        if call == "unlink" and path.startswith("failed/"):
            raise Killed
        return False

    odd(graves).refuse = refuse
    with pytest.raises(Killed):
        graves.retry("dead7")
    assert worker.poll() == []
    place.clock.ahead += EVERYWHERE
    assert ids(worker.poll(5)) == ["dead7"]


def test_a_task_that_dies_again_can_be_retried_again(place: Place, graves: FilesystemQueue) -> None:
    worker = place.open(max_attempts=1)
    assert worker.poll() == []
    for _ in range(3):
        graves.retry("dead7")
        place.clock.ahead += DEAD_PAUSE
        (task,) = worker.poll()
        worker.nack(task, "again")
        assert worker.poll() == []
        assert worker.get("dead7").state == "failed"


def test_letters_that_somebody_removed_come_back(place: Place, graves: FilesystemQueue) -> None:
    worker = place.open()
    assert worker.poll() == []
    for path in (place.folder / "failed/0").iterdir():
        path.unlink()
    place.clock.ahead += DEAD_PAUSE
    assert worker.poll() == []
    assert len(list((place.folder / "failed/0").iterdir())) == DEAD
