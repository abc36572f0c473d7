"""Each kind of damage is named with its path; what can be repaired is, for good, and no task is lost by it."""

from __future__ import annotations

import os
from pathlib import Path

import damage_around as around
import damage_ends as ends
import damage_tasks as tasks
import pytest
from damage_case import Case, written
from fsck_kit import Ground

from dfq.providers.filesystem.faults import FAULTS

T = ("t",)
CASES = [
    Case("queue-missing", around.no_queue_json),
    Case("queue-bad", lambda g: written(g.path("queue.json"), b""), "empty"),
    Case("queue-bad", lambda g: written(g.path("queue.json"), b'{"format": 1, "shards": 0}'), "shards"),
    Case("queue-newer", lambda g: written(g.path("queue.json"), b'{"format": 2, "shards": 4}')),
    Case("bad-clock", lambda g: written(g.path("clock.json"), b"{"), repaired=True),
    Case("bad-paused", lambda g: written(g.path("paused"))),
    Case("bad-paused", around.paused_by_a_folder, "a folder"),
    Case("not-a-folder", around.link_for_a_folder, "a link for a shard"),
    Case("not-a-folder", around.top_folder_is_a_file, "a file for failed/"),
    Case("not-a-file", around.made(Path.mkdir), "a folder", then=("good",)),
    Case("not-a-file", around.made(os.mkfifo), "a pipe", then=("good",)),
    Case("not-a-file", around.made(lambda p: p.symlink_to("/etc/passwd")), "a link", then=("good",)),
    Case("stray", lambda g: written(g.path("notes.txt"), b"x"), "in the queue's folder"),
    Case("stray", lambda g: written(g.path("completed/readme"), b"x"), "among the shards"),
    Case("stray", lambda g: g.path("frontier/12/x").parent, "no lane"),
    Case("stray", around.old_hidden, "hidden", then=T),
    Case("bad-name", around.bad_name, then=T),
    Case("bad-name", lambda g: written(g.slot().parent / "t~e0.lease", b"{}"), "a lease"),
    Case("old-temporary", around.old_temporary, repaired=True),
    Case("wrong-shard", around.in_another_shard, then=T),
    Case("wrong-shard-proof", around.witness_in_another_shard, "a witness"),
    Case("wrong-shard-proof", around.lease_in_another_shard, "a lease", then=T),
    Case("world-writable", around.world_writable, "a file", then=T),
    Case("world-writable", around.world_writable_folder, "a folder", then=T),
    Case("world-writable", around.world_writable_root, "the root"),
    Case("extra-link", around.linked_outside, then=T),
    Case("extra-link", around.scheduled_and_linked_outside, "scheduled"),
    Case("bad-task", tasks.task_with(b""), "empty"),
    Case("bad-task", tasks.task_with(b'{"id": "t", "payl'), "torn"),
    Case("bad-task", tasks.task_with(b'{"id": "u", "payload": {}}'), "of another id"),
    Case("bad-task", tasks.task_with(b'{"id": "t", "payload": 1, "encoding": "text"}'), "of a wrong type"),
    Case("bad-task", tasks.bad_scheduled, "scheduled"),
    Case("wrong-lane", tasks.in_another_lane, then=T),
    Case("wrong-epoch", tasks.of_another_epoch, then=T),
    Case("duplicate", tasks.twice(payload={"n": 2}), "in two lanes", then=T),
    Case("duplicate", tasks.waiting_and_scheduled, "scheduled too", then=T),
    Case("duplicate-copy", tasks.twice(), "in two lanes", then=T),
    Case("duplicate-copy", tasks.scheduled_twice, "scheduled twice"),
    Case("half-moved", tasks.half_moved, repaired=True, then=T),
    Case("leftover-task", tasks.leftover, repaired=True, then=T),
    Case("leftover-task", tasks.leftover_scheduled, "scheduled", repaired=True),
    Case("bad-bucket", tasks.bucket_without_a_time),
    Case("wrong-bucket", tasks.in_another_bucket),
    Case("empty-bucket", tasks.empty_bucket, repaired=True),
    Case("leftover-slots", ends.leftover_slot, repaired=True, then=T),
    Case("orphan-slots", ends.orphans),
    Case("slot-gap", ends.gap, then=T),
    Case("torn-lease", ends.torn, then=T),
    Case("slot-contradicts", ends.slot_with(generation=7, state="released", deadline_boottime=0), "generation"),
    Case("slot-contradicts", ends.slot_with(token=7), "token"),
    Case("slot-contradicts", ends.slot_with(task_id="u"), "task id"),
    Case("slot-contradicts", ends.done_slot_of_another, "of another task that is done"),
    Case("unfinished-completion", ends.unfinished, repaired=True, then=T),
    Case("unfinished-completion", ends.unfinished_without_its_task, "without its task", repaired=True, then=T),
    Case("done-overtaken", ends.overtaken),
    Case("unshown-letter", ends.unshown, repaired=True),
    Case("stale-letter", ends.redriven_but_shown, "put back since", repaired=True, then=T),
    Case("stale-letter", ends.died_again, "died again since", repaired=True),
    Case("stale-letter", ends.letter_without_slots, "without slots", repaired=True, then=T),
    Case("orphan-letter", ends.letter_without_task, "without its task"),
    Case("orphan-letter", ends.letter_without_anything, "without anything"),
    Case("bad-letter", ends.bad_letter),
    Case("failed-and-completed", ends.both, repaired=True, then=T),
    Case("bad-witness", ends.witness_with(b""), "empty"),
    Case("bad-witness", ends.witness_with(b'{"task_id": "t", "state": "do'), "torn"),
    Case("bad-witness", ends.witness_with(state="leased"), "a lease"),
    Case("witness-contradicts", ends.witness_with(task_id="u"), "task id"),
    Case("witness-contradicts", ends.witness_with(epoch=1), "epoch"),
    Case("witness-contradicts", ends.witness_with(token=99), "token"),
    Case("no-anchor", ends.no_anchor, "a witness"),
    Case("no-anchor", ends.no_anchor_of_a_waiting_task, "a waiting task"),
    Case("epoch-gap", ends.gap_in_epochs),
    Case("retired-proof", ends.proof_listed_as_guard),
    Case("stale-guard", ends.guard_without_witness, "without a witness", repaired=True),
    Case("stale-guard", ends.guard_of_another_witness, "of another", repaired=True, then=T),
    Case("stale-guard", ends.guard_of_another_stub, "of another stub", repaired=True),
    Case("unlisted-stub", ends.unlisted, repaired=True),
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
