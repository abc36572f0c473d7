"""Real filesystems, each mounted for the occasion, and what verify-fs and open_queue make of them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from node_kit import mounted

import dfq
from dfq.providers.filesystem import foldertime
from dfq.verify_fs import Report, verify

pytestmark = pytest.mark.timeout(280)  # the first one may have to install its tool


def outcomes(report: Report) -> dict[str, str]:
    return {v.promise: v.outcome for v in report.verdicts}


def work_off(queue: dfq.QueueManager, *ids: str, within: float = 20) -> None:
    """Complete these tasks, and wait for them at most so long."""
    left, deadline = set(ids), time.monotonic() + within
    while left and time.monotonic() < deadline:
        for task in queue.poll(10, wait=0.05):
            queue.ack(task)
            left.discard(task.id)
    assert left == set()


@pytest.mark.parametrize("kind", ["ext4", "btrfs", "xfs", "tmpfs", "overlay"])
def test_a_local_filesystem_keeps_every_promise(kind: str, tmp_path: Path) -> None:
    with mounted(kind, tmp_path) as disk:
        before = sorted(disk.iterdir())
        started = time.monotonic()
        report = verify(str(disk))
        assert time.monotonic() - started < 30
        assert (report.kind, report.local, report.fit, report.left_behind) == (kind, True, True, None)
        assert [v for v in report.verdicts if v.outcome != "kept"] == []
        assert sorted(disk.iterdir()) == before
        (disk / "root").mkdir()
        with dfq.open_queue("q", disk / "root", shards=2) as queue:
            queue.push({}, id="task")
            work_off(queue, "task")


WHOLE_SECONDS = "ext4 with whole seconds"


def test_whole_seconds_are_weaker(tmp_path: Path) -> None:
    with mounted(WHOLE_SECONDS, tmp_path) as disk:
        report = verify(str(disk), rounds=20)
        assert report.fit
        assert {name for name, outcome in outcomes(report).items() if outcome != "kept"} == {"folder times"}


def sees_what_comes_in_the_same_second(disk: Path, within: float) -> bool:
    """Tell whether a busy worker sees a task that does not change the time of the folder it is put into."""
    folder = disk / "q" / "frontier" / "5" / "0"
    with dfq.open_queue("q", disk, shards=1) as queue, dfq.open_queue("q", disk) as other:
        for attempt in range(10):  # a noisy machine may not get it done within a second
            time.sleep(1.02 - time.time() % 1)  # the beginning of one
            other.push({}, id=f"first {attempt}")
            time.sleep(0.1)
            work_off(queue, f"first {attempt}")
            assert queue.poll() == []
            before = folder.stat().st_mtime_ns
            other.push({}, id=f"second {attempt}")
            if folder.stat().st_mtime_ns == before:
                break
            work_off(queue, f"second {attempt}")
        else:
            pytest.fail("NOT RUN: this machine is too slow")
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            if tasks := queue.poll():
                assert [task.id for task in tasks] == [f"second {attempt}"]
                queue.ack(tasks[0])
                return True
            time.sleep(0.01)
        return False


def test_a_task_that_comes_in_the_same_second_is_seen(tmp_path: Path) -> None:
    with mounted(WHOLE_SECONDS, tmp_path) as disk:
        assert sees_what_comes_in_the_same_second(disk, within=20)


def test_it_would_not_be_seen_if_every_clock_was_taken_for_a_fine_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foldertime, "COARSE_TICK", foldertime.TICK)
    with mounted(WHOLE_SECONDS, tmp_path) as disk:
        assert not sees_what_comes_in_the_same_second(disk, within=4)


def test_fat_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with mounted("fat", tmp_path) as disk:
        report = verify(str(disk), rounds=2)
        assert not report.fit
        seen = outcomes(report)
        assert (seen["exclusive link"], seen["upper and lower case"]) == ("broken", "broken")
        root = disk / "root"
        root.mkdir(mode=0o755)
        with pytest.raises(dfq.ConfigError, match=r"no hard links.*use one such as ext4.*dfq verify-fs"):
            dfq.open_queue("q", root)


def test_a_queue_that_was_copied_to_fat_takes_no_tasks_and_says_why(tmp_path: Path) -> None:
    with dfq.open_queue("q", tmp_path / "good", shards=1) as queue:
        queue.push({}, id="old")
    with mounted("fat", tmp_path) as disk:
        (disk / "q").mkdir()
        shutil.copyfile(tmp_path / "good" / "q" / "queue.json", disk / "q" / "queue.json")
        with pytest.raises(dfq.QueueError, match="dfq verify-fs"), dfq.open_queue("q", disk) as queue:
            queue.push({}, id="new")


def test_a_filesystem_that_is_not_local_goes_by_time(tmp_path: Path) -> None:
    with mounted("fuse", tmp_path) as disk:
        report = verify(str(disk), rounds=20)
        assert not report.local
        seen = {v.promise: v for v in report.verdicts}
        for name in ("local filesystem", "lock between processes", "lock ends with its process"):
            assert seen[name].outcome == "weaker"
            assert "leases go by time" in seen[name].means
        for name in ("exclusive create", "exclusive link", "create against link", "upper and lower case"):
            assert seen[name].outcome == "kept", seen[name]
        assert seen["unnamed files"].outcome == "weaker"  # no O_TMPFILE
