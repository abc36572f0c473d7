"""What is removed, when, and what is not (ADR 018)."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from keeping_kit import DAY, HOUR, House

import dfq
from dfq.providers.filesystem import FilesystemQueue
from dfq.providers.filesystem.housekeeping import Retention


def claim(queue: FilesystemQueue) -> dfq.Task:
    (task,) = queue.poll()
    return task


def complete(queue: FilesystemQueue, task_id: str = "t", **push: Any) -> None:
    queue.push({}, id=task_id, **push)
    queue.ack(claim(queue), result={"big": "x" * 100})


def bury(queue: FilesystemQueue, task_id: str = "t") -> None:
    queue.push({"n": 1}, id=task_id)
    while queue.get(task_id).state != "failed":
        queue.nack(claim(queue), error="no")


def test_a_witness_goes_after_its_retention_and_not_before(house: House) -> None:
    q = house.queue()
    complete(q)
    house.live(q, 7 * DAY - HOUR)
    assert q.get("t").result is not None
    house.live(q, 2 * HOUR)
    assert house.files("completed", "retired", "active-leases", "frontier") == []
    with pytest.raises(dfq.TaskNotFound):
        q.get("t")
    q.push({}, id="t")
    assert claim(q).token == 1


def test_no_setting_makes_a_witness_go_before_the_guard_time(house: House) -> None:
    q = house.queue(retain_completed=0.0)
    complete(q)
    house.live(q, HOUR - 100)
    assert q.get("t").state == "completed"
    house.live(q, 1300)
    assert house.files("completed") == []


def test_the_guard_time_follows_the_lease() -> None:
    assert Retention.of(900, 0, 0) == Retention(9000, 9000, 9000)
    assert Retention.of(1, 7 * DAY, None) == Retention(HOUR, 7 * DAY, None)


@pytest.mark.parametrize("jump", [30 * DAY, -30 * DAY, 10 * 365 * DAY])
def test_a_clock_that_jumps_makes_nothing_old(house: House, jump: float) -> None:
    q = house.queue()
    house.live(q, 2 * HOUR)
    complete(q, "done")
    bury(q, "dead")
    house.clock.jump(jump)
    house.live(q, HOUR - 100)
    assert q.get("done").result is not None
    assert q.get("dead").state == "failed"


def test_a_process_that_starts_after_the_jump_waits_as_well(house: House) -> None:
    complete(house.queue())
    house.clock.jump(30 * DAY)
    q = house.queue()
    house.live(q, HOUR - 100)
    assert q.get("t").state == "completed"
    house.live(q, 1300)
    assert house.files("completed") == []


def test_short_lived_processes_clear_up_together(house: House) -> None:
    complete(house.queue())
    for _ in range(8 * 24):
        house.clock.pass_by(HOUR)
        q = house.queue()
        assert q.poll() == []
        q.close()
    assert house.files("completed") == []
    assert json.loads((house.folder / "clock.json").read_text())["boot_id"] == "boot-1"


def test_a_reboot_starts_the_guard_time_anew(house: House) -> None:
    complete(house.queue())
    house.live(house.queue(), 6 * DAY)
    house.boot = "boot-2"
    q = house.queue()
    house.clock.pass_by(2 * DAY)
    assert q.poll() == []
    assert q.get("t").state == "completed"
    house.live(q, 2 * HOUR)
    assert house.files("completed") == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "since_boottime": -1e9}']
)
def test_a_damaged_clock_file_only_costs_time(house: House, text: str) -> None:
    complete(house.queue())
    (house.folder / "clock.json").unlink(missing_ok=True)
    (house.folder / "clock.json").write_text(text)
    house.clock.pass_by(8 * DAY)
    q = house.queue()
    assert q.poll() == []
    assert q.get("t").state == "completed"
    house.live(q, 2 * HOUR)
    assert house.files("completed") == []


def test_a_dead_letter_goes_after_its_retention(house: House) -> None:
    q = house.queue(max_attempts=1)
    bury(q)
    house.live(q, 30 * DAY - HOUR)
    assert q.get("t").payload == {"n": 1}
    house.live(q, HOUR + 1200)
    assert house.files("failed", "frontier", "active-leases") == []
    assert q.get("t").expired
    assert q.counts() == dfq.Counts()
    house.live(q, 3 * HOUR)
    assert house.files("completed", "retired") == []


def test_a_task_that_was_put_back_does_not_expire(house: House) -> None:
    q = house.queue(max_attempts=1)
    bury(q)
    house.live(q, 29 * DAY)
    q.retry("t")
    held = claim(q)
    house.clock.pass_by(0.5)
    q.nack(held, error="again")
    house.live(q, 5 * DAY)
    assert q.get("t").state == "failed"
    assert len(q.get("t").errors) == 2
    house.live(q, 25 * DAY + 1200)
    assert q.get("t").expired


def test_an_expiry_and_a_retry_compete_and_one_wins(house: House) -> None:
    q, other = house.queue(max_attempts=1), house.queue(max_attempts=1)
    bury(q)
    entry = other._view.find("t")
    assert entry is not None

    def put_back(slot: str) -> bool:
        assert q.retry("t") == ["t"]  # between the look at the DEAD slot and the takeover
        return True

    assert not other._log.expire(entry, put_back)
    q.ack(claim(q))
    assert q.counts() == dfq.Counts(completed=1)


def test_what_is_not_over_is_never_removed(house: House) -> None:
    q = house.queue(retain_completed=0.0, retain_failed=0.0)
    q.push({"n": 1}, id="waiting")
    q.push({"n": 2}, id="later", delay=400 * DAY)
    q.pause()
    house.live(q, 60 * DAY, step=6 * HOUR)
    assert q.get("waiting").payload == {"n": 1}
    assert q.get("later").payload == {"n": 2}
    q.resume()
    assert claim(q).id == "waiting"


def test_on_ack_delete_keeps_a_stub_for_the_guard_time(house: House) -> None:
    q = house.queue(on_ack="delete")
    complete(q)
    assert q.counts() == dfq.Counts()
    assert q.get("t").state == "completed"
    assert b"xxx" not in (house.folder / "completed/0/t.json").read_bytes()
    with pytest.raises(dfq.TaskExists):
        q.push({}, id="t")
    house.live(q, HOUR - 100)
    assert house.files("completed") == ["completed/0/t.json"]
    house.live(q, 1300)
    assert house.files("completed", "retired", "frontier", "active-leases") == []


def test_a_cancelled_id_is_forgotten_after_the_guard_time(house: House) -> None:
    q = house.queue()
    q.push({}, id="t")
    q.cancel("t")
    house.live(q, HOUR + 1300)
    assert house.files("completed", "retired") == []


def test_the_link_of_an_earlier_stub_does_not_take_a_new_witness_along(house: House) -> None:
    q = house.queue()
    q.push({}, id="t")
    q.cancel("t")
    (house.folder / "completed/0/t.json").unlink()  # as if the one who retired it had died here
    complete(q)
    house.live(q, 2 * HOUR)
    assert q.get("t").result is not None
    assert house.files("retired") == []


def test_a_cancelled_task_does_not_come_back_when_its_guard_goes(house: House) -> None:
    q = house.queue()
    q.push({}, id="t")
    task = house.folder / "frontier/5/0/t.json"
    os.link(task, house.folder / "kept.json")
    q.cancel("t")
    os.link(house.folder / "kept.json", task)  # as if the one who cancelled it had died before removing this
    q.pause()
    house.live(q, 3 * HOUR)
    assert house.files("completed", "retired", "frontier") == []
    q.resume()
    assert q.poll() == []


def test_the_first_witness_stays_while_a_later_epoch_is_there(house: House) -> None:
    q = house.queue()
    complete(q)
    house.live(q, 6 * DAY)
    complete(q, if_exists="rerun")
    house.live(q, 3 * DAY)
    assert house.files("completed") == ["completed/0/t.json", "completed/0/t~e1.json"]
    with pytest.raises(dfq.TaskExists):
        q.push({}, id="t")
    complete(q, if_exists="rerun")
    house.live(q, 5 * DAY)
    assert house.files("completed") == ["completed/0/t.json", "completed/0/t~e2.json"]
    house.live(q, 3 * DAY)
    assert house.files("completed") == []


def test_the_first_witness_stays_while_the_task_waits_to_run_again(house: House) -> None:
    q = house.queue()
    complete(q)
    q.push({}, id="t", if_exists="rerun", delay=20 * DAY)
    house.live(q, 19 * DAY)
    assert house.files("completed") == ["completed/0/t.json"]
    house.clock.pass_by(2 * DAY)
    q.ack(claim(q))
    assert q.counts() == dfq.Counts(completed=1)


def test_many_witnesses_are_cleared_up_in_rounds(house: House) -> None:
    q = house.queue(shards=16)
    for n in range(200):
        complete(q, f"t{n}")
    house.live(q, 7 * DAY - HOUR, step=12 * HOUR)
    assert q.counts() == dfq.Counts(completed=200)
    house.live(q, DAY, step=HOUR)
    assert house.files("completed") == []
    assert len(os.listdir(house.folder / "completed")) <= 16


def test_a_temporary_file_goes_an_hour_after_it_was_first_seen(house: House) -> None:
    q = house.queue()
    (house.folder / ".tmp-1-abc").write_text("half a task")
    house.live(q, HOUR - 100)
    assert (house.folder / ".tmp-1-abc").exists()
    house.live(q, 1300)
    assert not (house.folder / ".tmp-1-abc").exists()


def test_a_cancelled_first_epoch_stays_for_the_latest_one(house: House) -> None:
    q = house.queue()
    q.push({}, id="t")
    q.cancel("t")
    complete(q)
    house.live(q, 7 * DAY - HOUR)
    complete(q, if_exists="rerun")
    house.live(q, 5 * HOUR)
    assert house.files("completed") == ["completed/0/t.json", "completed/0/t~e2.json"]
    with pytest.raises(dfq.TaskExists):
        q.push({}, id="t")


def test_a_folder_in_place_of_a_witness_takes_nothing_away(house: House) -> None:
    q = house.queue(max_attempts=1)
    bury(q, "dead")
    q.push({}, id="live")
    held = claim(q)
    for name in ("live", "dead"):
        (house.folder / f"completed/0/{name}.json").mkdir(parents=True)
    for _ in range(3):
        house.clock.pass_by(20)
        q.heartbeat(held)
        house.clock.pass_by(20)
        q.heartbeat(held)
        house.clock.pass_by(25)
        assert q.poll() == []
    assert house.files("failed") == ["failed/0/dead.json"]
    for name in ("live", "dead"):
        (house.folder / f"completed/0/{name}.json").rmdir()
    q.ack(held)
    assert q.get("dead").state == "failed"


def test_a_rerun_that_meets_the_retirement_of_its_anchor_is_pushed_once(house: House) -> None:
    q = house.queue()
    complete(q)
    intake_write = q._intake.write

    def retire_meanwhile(items: list[Any]) -> list[Any]:
        taken = intake_write(items)
        if "~e1" in items[0].path:
            (house.folder / "completed/0/t.json").unlink(missing_ok=True)
        return taken

    q._intake.write = retire_meanwhile  # type: ignore[method-assign]
    assert q.push({"n": 2}, id="t", if_exists="rerun") == "t"
    q._intake.write = intake_write  # type: ignore[method-assign]
    (task,) = q.poll(10)
    assert task.payload == {"n": 2}
    q.ack(task)
    assert q.poll() == []
