"""Each kind of damage is named with its path; what can be repaired is, for good, and no task is lost by it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fsck_kit import Ground, age

from dfq.ports import Machine
from dfq.providers.filesystem.faults import FAULTS

Plant = Callable[[Ground], "Path | str"]


@dataclass(frozen=True)
class Case:
    """A damage, and what is to become of it. `plant` returns the path that fsck must name."""

    code: str
    plant: Plant
    about: str = ""
    repaired: bool = False
    #: Ids that a worker completes afterwards, each once.
    then: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}{': ' if self.about else ''}{self.about}"


def other_shard(ground: Ground, path: Path) -> Path:
    """Move a file into another shard."""
    shard = f"{(int(path.parent.name, 16) + 1) % 4:x}"
    there = path.parent.parent / shard / path.name
    there.parent.mkdir(exist_ok=True)
    path.rename(there)
    return there


def written(path: Path, data: bytes | str = b"") -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# -- the queue as a whole ------------------------------------------------------------------------


def no_queue_json(ground: Ground) -> Path:
    path = ground.path("queue.json")
    path.unlink()
    return path


def clock_of_long_ago(ground: Ground) -> None:
    """Let this machine's clock count as steady for hours."""
    elapsed = time.clock_gettime(time.CLOCK_BOOTTIME)
    record = {"boot_id": Machine.this().boot_id, "since_boottime": 0.0, "offset": time.time() - elapsed}
    written(ground.path("clock.json"), json.dumps(record))


def old_temporary(ground: Ground) -> Path:
    clock_of_long_ago(ground)
    path = written(ground.path(".tmp-7-ab"), b"half")
    age(path)
    return path


def paused_by_a_folder(ground: Ground) -> Path:
    path = ground.path("paused")
    path.mkdir()
    return path


# -- what lies around ----------------------------------------------------------------------------


def link_for_a_folder(ground: Ground) -> Path:
    ground.done()
    shard = ground.completed().parent
    shard.rename(ground.root / "moved")
    shard.symlink_to(ground.root / "moved")
    return shard


def top_folder_is_a_file(ground: Ground) -> Path:
    return written(ground.path("failed"), b"x")


def made(make: Callable[[Path], Any]) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.push("good")
        make(path := ground.task())
        return path

    return plant


def old_hidden(ground: Ground) -> Path:
    ground.push()
    path = written(ground.task().parent / ".t.json.swp", b"x")
    age(path)
    return path


def bad_name(ground: Ground) -> Path:
    ground.push()
    return written(ground.task().parent / "a%zz.json", b"{}")


def in_another_shard(ground: Ground) -> Path:
    ground.push()
    return other_shard(ground, ground.task())


def witness_in_another_shard(ground: Ground) -> Path:
    ground.done()
    return other_shard(ground, ground.completed())


def lease_in_another_shard(ground: Ground) -> Path:
    ground.push()
    ground.queue.poll_detached()
    return other_shard(ground, ground.slot())


def world_writable(ground: Ground) -> Path:
    ground.push()
    ground.task().chmod(0o666)
    return ground.task()


def world_writable_folder(ground: Ground) -> Path:
    ground.push()
    ground.task().parent.chmod(0o777)
    return ground.task().parent


def world_writable_root(ground: Ground) -> str:
    ground.root.chmod(0o777)
    return str(ground.root)


def linked_outside(ground: Ground) -> Path:
    ground.push()
    os.link(ground.task(), ground.root / "backup.json")
    return ground.task()


def scheduled_and_linked_outside(ground: Ground) -> Path:
    ground.push(delay=1000)
    os.link(ground.scheduled(), ground.root / "backup.json")
    return ground.scheduled()


# -- tasks ---------------------------------------------------------------------------------------


def task_with(data: bytes) -> Plant:
    return lambda ground: written(ground.task(), data)


def bad_scheduled(ground: Ground) -> Path:
    ground.push(delay=1000)
    return written(ground.scheduled(), b"{")


def in_another_lane(ground: Ground) -> Path:
    ground.push()
    ground.task().rename(ground.task(lane=7))
    return ground.task(lane=7)


def of_another_epoch(ground: Ground) -> Path:
    ground.push()
    ground.change(ground.task(), epoch=3)
    return ground.task()


def twice(**fields: Any) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.push(priority=7)
        shutil.copy(ground.task(lane=7), ground.task())
        ground.change(ground.task(), priority=5, nonce="other", **fields)
        return ground.task()

    return plant


def waiting_and_scheduled(ground: Ground) -> Path:
    ground.push(delay=1000)
    written(ground.task(), ground.kept(ground.scheduled()))
    ground.change(ground.task(), nonce="other", payload={"n": 2})
    return ground.scheduled()


def scheduled_twice(ground: Ground) -> Path:
    ground.push(delay=1000)
    first = ground.scheduled()
    ground.change(first, due_at="2033-01-01T00:00:00Z")
    second = ground.path("scheduled/20330101T000000Z/t.json")
    first.rename(second)
    first.parent.rmdir()
    third = ground.path("scheduled/20330101T000005Z/t.json")
    shutil.copy(second, third)
    ground.change(third, due_at="2033-01-01T00:00:05Z")
    return third


def half_moved(ground: Ground) -> Path:
    ground.push(delay=0.001)
    os.link(ground.scheduled(), ground.task())
    return ground.scheduled()


def leftover(ground: Ground) -> Path:
    ground.push()
    kept = ground.kept(ground.task())
    ground.queue.ack(ground.claim())
    return written(ground.task(), kept)


def leftover_scheduled(ground: Ground) -> Path:
    ground.push("other", delay=1000)
    kept = ground.kept(ground.scheduled())
    ground.queue.cancel("other")
    return written(ground.path("scheduled/20330101T000000Z/other.json"), kept)


# -- the schedule --------------------------------------------------------------------------------


def bucket_without_a_time(ground: Ground) -> Path:
    ground.push(delay=1000)
    bucket = ground.scheduled().parent
    bucket.rename(bucket.parent / "tomorrow")
    return bucket.parent / "tomorrow"


def in_another_bucket(ground: Ground) -> Path:
    ground.push(delay=1000)
    path = ground.path("scheduled/20330101T000000Z/t.json")
    bucket = ground.scheduled().parent
    ground.scheduled().rename(path)
    bucket.rmdir()
    return path


def empty_bucket(ground: Ground) -> Path:
    return ground.path("scheduled/20330101T000000Z/x").parent


# -- slots ---------------------------------------------------------------------------------------


def leftover_slot(ground: Ground) -> Path:
    ground.done()
    return written(ground.slot(3), b"{}")


def orphans(ground: Ground) -> Path:
    ground.push()
    ground.queue.poll_detached()
    ground.task().unlink()
    return ground.slot()


def gap(ground: Ground) -> Path:
    ground.push()
    return written(ground.slot(2), b"")


def torn(ground: Ground) -> Path:
    ground.push()
    return written(ground.slot(), b'{"task_id": "t", "sta')


def slot_with(**fields: Any) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.push()
        ground.queue.poll_detached()
        ground.change(ground.slot(), **fields)
        return ground.slot()

    return plant


def half_done(ground: Ground) -> None:
    """Leave what a worker leaves that dies right after its completion has happened."""
    ground.push()
    kept = ground.kept(ground.task())
    task = ground.claim()
    lease = ground.kept(ground.slot())
    ground.queue.ack(task, result="first")
    written(ground.task(), kept)
    written(ground.slot(), lease)
    ground.completed().rename(ground.slot(2))


def unfinished(ground: Ground) -> Path:
    half_done(ground)
    return ground.slot(2)


def unfinished_without_its_task(ground: Ground) -> Path:
    half_done(ground)
    ground.task().unlink()
    return ground.slot(2)


def done_slot_of_another(ground: Ground) -> Path:
    half_done(ground)
    ground.change(ground.slot(2), task_id="u")
    return ground.slot(2)


def overtaken(ground: Ground) -> Path:
    half_done(ground)
    written(ground.slot(3), ground.kept(ground.slot()))
    ground.change(ground.slot(3), generation=3, token=3, state="released")
    return ground.slot(2)


# -- dead letters --------------------------------------------------------------------------------


def unshown(ground: Ground) -> Path:
    ground.dead()
    ground.failed().unlink()
    return ground.slot(2)


def redriven_but_shown(ground: Ground) -> Path:
    ground.dead()
    kept = ground.kept(ground.failed())
    ground.queue.retry("t")
    return written(ground.failed(), kept)


def died_again(ground: Ground) -> Path:
    ground.dead()
    kept = ground.kept(ground.failed())
    ground.queue.retry("t")
    ground.queue.nack(ground.claim(), error="again")
    ground.failed().unlink()
    return written(ground.failed(), kept)


def letter_without_slots(ground: Ground) -> Path:
    ground.dead()
    for n in (1, 2):
        ground.slot(n).unlink()
    return ground.failed()


def letter_without_task(ground: Ground) -> Path:
    ground.dead()
    ground.task().unlink()
    return ground.slot(2)


def letter_without_anything(ground: Ground) -> Path:
    letter_without_slots(ground)
    ground.task().unlink()
    return ground.failed()


def bad_letter(ground: Ground) -> Path:
    ground.dead()
    ground.failed().unlink()
    return written(ground.failed(), b"")


def both(ground: Ground) -> Path:
    ground.dead("x")
    ground.done()
    return written(ground.failed(), ground.kept(ground.failed("x")))


# -- witnesses -----------------------------------------------------------------------------------


def witness_with(data: bytes | None = None, **fields: Any) -> Plant:
    def plant(ground: Ground) -> Path:
        ground.done()
        if data is None:
            ground.change(ground.completed(), **fields)
        else:
            written(ground.completed(), data)
        return ground.completed()

    return plant


def put_back(ground: Ground, *, done: bool) -> None:
    ground.done()
    ground.push(if_exists="rerun")
    if done:
        ground.queue.ack(ground.claim())


def no_anchor(ground: Ground) -> Path:
    put_back(ground, done=True)
    ground.completed().unlink()
    return ground.completed("t~e1")


def no_anchor_of_a_waiting_task(ground: Ground) -> Path:
    put_back(ground, done=False)
    ground.completed().unlink()
    return ground.task("t~e1")


def gap_in_epochs(ground: Ground) -> Path:
    put_back(ground, done=True)
    ground.push(if_exists="rerun")
    ground.completed("t~e1").unlink()
    return ground.task("t~e2")


def proof_listed_as_guard(ground: Ground) -> Path:
    ground.done()
    os.link(ground.completed(), ground.retired())
    return ground.retired()


def cancelled(ground: Ground) -> None:
    ground.push()
    ground.queue.cancel("t")


def guard_without_witness(ground: Ground) -> Path:
    cancelled(ground)
    ground.completed().unlink()
    return ground.retired()


def guard_of_another_witness(ground: Ground) -> Path:
    ground.done()
    return written(ground.retired(), b'{"state": "cancelled"}')


def guard_of_another_stub(ground: Ground) -> Path:
    cancelled(ground)
    ground.retired().unlink()
    return written(ground.retired(), b'{"state": "cancelled"}')


def unlisted(ground: Ground) -> Path:
    cancelled(ground)
    ground.retired().unlink()
    return ground.completed()


T = ("t",)
CASES = [
    Case("queue-missing", no_queue_json),
    Case("queue-bad", lambda g: written(g.path("queue.json"), b""), "empty"),
    Case("queue-bad", lambda g: written(g.path("queue.json"), b'{"format": 1, "shards": 0}'), "shards"),
    Case("queue-newer", lambda g: written(g.path("queue.json"), b'{"format": 2, "shards": 4}')),
    Case("bad-clock", lambda g: written(g.path("clock.json"), b"{"), repaired=True),
    Case("bad-paused", lambda g: written(g.path("paused"))),
    Case("bad-paused", paused_by_a_folder, "a folder"),
    Case("not-a-folder", link_for_a_folder, "a link for a shard"),
    Case("not-a-folder", top_folder_is_a_file, "a file for failed/"),
    Case("not-a-file", made(Path.mkdir), "a folder", then=("good",)),
    Case("not-a-file", made(os.mkfifo), "a pipe", then=("good",)),
    Case("not-a-file", made(lambda p: p.symlink_to("/etc/passwd")), "a link", then=("good",)),
    Case("stray", lambda g: written(g.path("notes.txt"), b"x"), "in the queue's folder"),
    Case("stray", lambda g: written(g.path("completed/readme"), b"x"), "among the shards"),
    Case("stray", lambda g: g.path("frontier/12/x").parent, "no lane"),
    Case("stray", old_hidden, "hidden", then=T),
    Case("bad-name", bad_name, then=T),
    Case("bad-name", lambda g: written(g.slot().parent / "t~e0.lease", b"{}"), "a lease"),
    Case("old-temporary", old_temporary, repaired=True),
    Case("wrong-shard", in_another_shard, then=T),
    Case("wrong-shard-proof", witness_in_another_shard, "a witness"),
    Case("wrong-shard-proof", lease_in_another_shard, "a lease", then=T),
    Case("world-writable", world_writable, "a file", then=T),
    Case("world-writable", world_writable_folder, "a folder", then=T),
    Case("world-writable", world_writable_root, "the root"),
    Case("extra-link", linked_outside, then=T),
    Case("extra-link", scheduled_and_linked_outside, "scheduled"),
    Case("bad-task", task_with(b""), "empty"),
    Case("bad-task", task_with(b'{"id": "t", "payl'), "torn"),
    Case("bad-task", task_with(b'{"id": "u", "payload": {}}'), "of another id"),
    Case("bad-task", task_with(b'{"id": "t", "payload": 1, "encoding": "text"}'), "of a wrong type"),
    Case("bad-task", bad_scheduled, "scheduled"),
    Case("wrong-lane", in_another_lane, then=T),
    Case("wrong-epoch", of_another_epoch, then=T),
    Case("duplicate", twice(payload={"n": 2}), "in two lanes", then=T),
    Case("duplicate", waiting_and_scheduled, "scheduled too", then=T),
    Case("duplicate-copy", twice(), "in two lanes", then=T),
    Case("duplicate-copy", scheduled_twice, "scheduled twice"),
    Case("half-moved", half_moved, repaired=True, then=T),
    Case("leftover-task", leftover, repaired=True, then=T),
    Case("leftover-task", leftover_scheduled, "scheduled", repaired=True),
    Case("bad-bucket", bucket_without_a_time),
    Case("wrong-bucket", in_another_bucket),
    Case("empty-bucket", empty_bucket, repaired=True),
    Case("leftover-slots", leftover_slot, repaired=True, then=T),
    Case("orphan-slots", orphans),
    Case("slot-gap", gap, then=T),
    Case("torn-lease", torn, then=T),
    Case("slot-contradicts", slot_with(generation=7, state="released", deadline_boottime=0), "generation"),
    Case("slot-contradicts", slot_with(token=7), "token"),
    Case("slot-contradicts", slot_with(task_id="u"), "task id"),
    Case("slot-contradicts", done_slot_of_another, "of another task that is done"),
    Case("unfinished-completion", unfinished, repaired=True, then=T),
    Case("unfinished-completion", unfinished_without_its_task, "without its task", repaired=True, then=T),
    Case("done-overtaken", overtaken),
    Case("unshown-letter", unshown, repaired=True),
    Case("stale-letter", redriven_but_shown, "put back since", repaired=True, then=T),
    Case("stale-letter", died_again, "died again since", repaired=True),
    Case("stale-letter", letter_without_slots, "without slots", repaired=True, then=T),
    Case("orphan-letter", letter_without_task, "without its task"),
    Case("orphan-letter", letter_without_anything, "without anything"),
    Case("bad-letter", bad_letter),
    Case("failed-and-completed", both, repaired=True, then=T),
    Case("bad-witness", witness_with(b""), "empty"),
    Case("bad-witness", witness_with(b'{"task_id": "t", "state": "do'), "torn"),
    Case("bad-witness", witness_with(state="leased"), "a lease"),
    Case("witness-contradicts", witness_with(task_id="u"), "task id"),
    Case("witness-contradicts", witness_with(epoch=1), "epoch"),
    Case("witness-contradicts", witness_with(token=99), "token"),
    Case("no-anchor", no_anchor, "a witness"),
    Case("no-anchor", no_anchor_of_a_waiting_task, "a waiting task"),
    Case("epoch-gap", gap_in_epochs),
    Case("retired-proof", proof_listed_as_guard),
    Case("stale-guard", guard_without_witness, "without a witness", repaired=True),
    Case("stale-guard", guard_of_another_witness, "of another", repaired=True, then=T),
    Case("stale-guard", guard_of_another_stub, "of another stub", repaired=True),
    Case("unlisted-stub", unlisted, repaired=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_named_and_repaired_if_it_can_be(ground: Ground, case: Case) -> None:
    path = case.plant(ground)
    where = path if isinstance(path, str) else str(path.relative_to(ground.folder))
    before = ground.tree_of_files()

    found = ground.check()
    assert (case.code, where) in [finding.key for finding in found], found
    assert {finding.code for finding in found} == {case.code}
    (finding, *_) = [finding for finding in found if finding.key == (case.code, where)]
    assert finding.level == FAULTS[case.code][0]
    assert finding.found
    assert finding.repairable == case.repaired
    assert ground.tree_of_files() == before, "looking has changed something"

    after = ground.check(repair=True)
    assert [f.repaired for f in after if f.key == finding.key] == [case.repaired]
    if case.repaired:
        assert ground.check() == []
    else:
        assert {f.key for f in ground.check()} == {f.key for f in found}
        assert ground.tree_of_files() == before, "what cannot be repaired was changed"
    assert not any(f.repairable for f in ground.check()), "a second repair would find something to do"
    if case.then:
        ground.work_off(*case.then)


def test_there_is_a_case_for_each_code() -> None:
    # An unreadable file needs a disk that refuses: test_fsck_disks.py.
    assert {case.code for case in CASES} | {"unreadable"} == set(FAULTS)


def test_only_what_is_no_alarm_is_repaired() -> None:
    assert [case.code for case in CASES if case.repaired and FAULTS[case.code][0] == "must"] == []
