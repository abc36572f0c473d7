"""An idle worker sleeps, wakes in time, does not spin, and its threads do not sleep over each other's work."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from scan_kit import PATIENCE, Place, Polling, count_looks, ids, odd, until

from dfq.providers.filesystem.claiming import RETURNED
from dfq.providers.filesystem.frontier import BUFFER
from dfq.queue import Push

pytestmark = pytest.mark.timeout(90)


def asleep(place: Place, threads: list[Polling]) -> None:
    """Wait until one of some threads sleeps on the events and the others wait for their turn."""
    idle = threads[0].queue._idle
    until(lambda: idle._taken and len(idle._turn._waiters) == len(threads) - 1, "all sleep")  # type: ignore[attr-defined]


def test_a_paused_queue_sleeps_although_tasks_are_due(place: Place) -> None:
    queue = place.open()
    queue.push({}, id="a", delay=0.05)
    queue.push({}, id="b", delay=500)
    queue.poll()
    queue.pause()
    place.clock.ahead += 1
    assert count_looks(queue, 0.5) <= 4
    queue.resume()
    assert ids(queue.poll(wait=PATIENCE)) == ["a"]


def test_an_entry_that_is_gone_does_not_come_due_for_ever(place: Place) -> None:
    worker, other = place.open(), place.open()
    other.push({}, id="a")
    (task,) = other.poll()
    other.nack(task, delay=1)
    assert worker.poll() == []
    place.clock.ahead += 2
    (task,) = other.poll()
    other.ack(task)
    assert count_looks(worker, 0.5) <= 4
    assert worker._frontier.next_due() > place.clock.elapsed() + 1


def test_what_is_due_and_never_dealt_with_does_not_make_a_worker_spin(place: Place) -> None:
    worker = place.open()
    worker._frontier.next_due = lambda: 0.0  # type: ignore[method-assign]
    assert count_looks(worker, 1.0) < 100


def test_two_threads_both_get_a_task_at_once(place: Place) -> None:
    worker, pusher = place.open(), place.open()
    pusher.push_many([{"n": n} for n in range(20)])
    for task in worker.poll(100):
        worker.ack(task)
    worker.poll(wait=0.05)
    worker.pause()
    threads = [Polling(worker) for _ in range(3)]
    asleep(place, threads)
    pusher.push_many([{"n": n} for n in range(20)])
    asleep(place, threads)
    pusher.resume()
    assert [len(thread.result()) for thread in threads] == [1, 1, 1]


def test_tasks_that_come_due_together_wake_all_threads(place: Place) -> None:
    worker, pusher = place.open(), place.open()
    pusher.push_many([Push({}, f"t{n}", delay=0.3) for n in range(5)])
    threads = [Polling(worker) for _ in range(3)]
    assert [len(thread.result()) for thread in threads] == [1, 1, 1]


@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_all_sleeping_threads_return_at_once(place: Place, how: str) -> None:
    worker = place.open()
    worker.poll(wait=0.05)
    threads = [Polling(worker) for _ in range(3)]
    asleep(place, threads)
    began = time.monotonic()
    getattr(worker, how)()
    assert [thread.result() for thread in threads] == [[], [], []]
    assert time.monotonic() - began < 5
    worker.close()
    until(lambda: worker._idle._events is None, "the last one out frees the descriptors")


def test_a_thread_that_leaves_hands_its_place_on(place: Place) -> None:
    worker, pusher = place.open(), place.open()
    worker.poll(wait=0.05)
    short, long = Polling(worker, wait=0.3), Polling(worker)
    assert short.result() == []
    asleep(place, [long])
    pusher.push({}, id="a")
    assert ids(long.result()) == ["a"]


def test_a_push_just_before_the_sleep_is_not_slept_over(place: Place) -> None:
    worker = place.open()
    worker.poll(wait=0.05)
    news = worker._idle.news
    assert worker.poll() == []
    worker.push({}, id="a")
    began = time.monotonic()
    worker._idle.sleep(PATIENCE, news)
    assert time.monotonic() - began < PATIENCE / 2


def test_a_worker_without_descriptors_for_events_looks_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.eventfd", out_of_descriptors)
    worker = place.open()
    thread = Polling(worker)
    place.open().push({}, id="a")
    assert ids(thread.result()) == ["a"]


def test_a_busy_worker_discovers_a_new_lane(place: Place) -> None:
    worker, pusher = place.open(), place.open()
    pusher.push_many([{"n": n} for n in range(50)])
    worker.ack(worker.poll()[0])
    pusher.push({}, id="urgent", priority=9)
    place.clock.ahead += 0.02
    assert ids(worker.poll()) == ["urgent"]


def test_a_clock_that_is_set_back_does_not_make_polls_dear(place: Place) -> None:
    place.open().push_many([Push({}, f"t{n}") for n in range(20)])
    other = place.open()
    ids(other.poll(100))
    place.clock.wall_off = -3600
    worker = place.open()
    assert worker.poll() == []
    place.clock.ahead += 0.1
    assert worker.poll() == []
    odd(worker).forget()
    for _ in range(5):
        assert worker.poll() == []
    assert not [path for call, path in odd(worker).paths if call == "scan" and path.count("/") == 2]


def test_times_of_whole_seconds_hide_no_task(place: Place) -> None:
    worker, pusher = place.open(shards=1), place.open(shards=1)
    second = int(time.time()) * 10**9
    odd(worker).time_of = lambda path, mtime_ns: second  # nothing changes within a tick of this filesystem's clock
    pusher.push({}, id="a")
    assert ids(worker.poll(5)) == ["a"]
    place.clock.ahead += 0.5
    worker.poll()
    pusher.push({}, id="b")
    assert ids(worker.poll(5)) == ["b"]
    place.clock.ahead += 0.5
    pusher.push({}, id="c", delay=0.1)
    worker.poll()
    pusher.push({}, id="d", delay=0.1)
    place.clock.ahead += 0.5
    assert ids(worker.poll(5)) == ["c", "d"]


def test_events_of_a_paused_queue_do_not_pile_up(place: Place) -> None:
    worker, pusher = place.open(shards=1), place.open(shards=1)
    pusher.push({}, id="first")
    ids(worker.poll())
    worker.poll(wait=0.05)
    worker.pause()
    thread = Polling(worker)
    asleep(place, [thread])
    pushed = 2 * BUFFER
    for n in range(pushed):
        pusher.push({"n": n})
    asleep(place, [thread])
    assert sum(len(lane.buffer) for lane in worker._frontier._lanes.values()) <= BUFFER
    worker.resume()
    assert len(thread.result()) == 1
    served = 1
    while tasks := worker.poll(200):
        served += len(tasks)
        for task in tasks:
            worker.ack(task)
    assert served == pushed


def test_names_that_come_back_do_not_pile_up_without_a_poll(place: Place) -> None:
    queue = place.open()
    queue.push({}, id="a")
    (task,) = queue.poll()
    queue.nack(task)
    for n in range(2 * RETURNED):
        queue._claiming.returned.append(f"t{n}")
    assert len(queue._claiming.returned) == RETURNED
    assert ids(queue.poll()) == ["a"], "what was dropped is found all the same"


def test_no_name_that_comes_back_is_lost_between_threads(place: Place) -> None:
    queue, total, offered = place.open(), 20_000, []
    queue._frontier.unblock = lambda name: bool(offered.append(name))  # type: ignore[func-returns-value,method-assign]

    def bring_back() -> None:
        for n in range(total):
            while len(queue._claiming.returned) >= RETURNED - 1:
                time.sleep(0)
            queue._claiming.returned.append(str(n))

    thread = threading.Thread(target=bring_back)
    thread.start()
    while thread.is_alive():
        queue._claiming._offer_again()
    queue._claiming._offer_again()
    assert len(offered) == total


def test_more_entries_than_are_remembered_do_not_make_a_poll_endless(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("dfq"), "disabled", True)
    place.open(shards=1).push_many([Push({}, f"t{n}") for n in range(30)])
    holder = place.open(shards=1)
    held = holder.poll(30)
    worker = place.open(shards=1)
    worker._frontier._remembered = 10
    assert worker.poll() == []
    assert len(worker._frontier._lanes[5].shards["0"].blocked) == 10
    odd(worker).forget()
    assert worker.poll() == []
    assert odd(worker).calls["open"] == 0, "they are left alone for a while"
    holder.nack(held[0])
    place.clock.ahead += 31
    assert len(ids(worker.poll())) == 1
