"""A disk that is full, out of inodes or read-only: the queue says so and goes on afterwards, and loses nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from input_kit import work_off_good

import dfq
from dfq.providers.filesystem import FilesystemQueue

pytestmark = [
    pytest.mark.timeout(30),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk wants root: run this with scripts/test"),
]


class Mount:
    """A small disk of its own."""

    def __init__(self, point: Path, options: str) -> None:
        self.point = point
        point.mkdir()
        self._run("mount", "-t", "tmpfs", "-o", f"mode=755,{options}", "dfq-test", str(point))

    def remount(self, how: str) -> None:
        self._run("mount", "-o", f"remount,{how}", str(self.point))

    def close(self) -> None:
        self._run("umount", "-l", str(self.point))

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"{' '.join(command)}: {done.stderr.strip()}; this test needs a machine that lets root mount")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    mounts: list[Mount] = []

    def make(options: str) -> Mount:
        mounts.append(Mount(tmp_path / f"disk{len(mounts)}", options))
        return mounts[-1]

    yield make
    for mount in mounts:
        mount.close()


@pytest.fixture(params=["full", "fast"])
def durability(request: pytest.FixtureRequest) -> str:
    return request.param


def fill_by_pushing(queue: dfq.QueueManager, where: Path) -> list[str]:
    """Push until the disk is full; return the ids of what was accepted."""
    pushed: list[str] = []
    refused: dfq.QueueUnavailable | None = None
    while refused is None:
        assert len(pushed) < 1000, "this disk does not get full"
        try:
            pushed.append(queue.push({"text": "x" * 500}, id=f"t{len(pushed)}"))
        except dfq.QueueUnavailable as e:
            refused = e
    assert str(where) in str(refused)
    assert "free some space" in str(refused)
    assert len(pushed) > 5
    return pushed


def check_full_disk(queue: dfq.QueueManager, where: Path, ballast: list[Path]) -> None:
    pushed = fill_by_pushing(queue, where)
    assert queue.counts().pending == len(pushed)
    held: list[dfq.Task] = []
    refused: list[str] = []
    for _ in range(5):
        try:
            held += queue.poll(3)
        except dfq.QueueUnavailable as e:
            refused.append(str(e))
    for task in held:
        with contextlib.suppress(dfq.QueueUnavailable):
            queue.ack(task)
    assert refused or held
    assert all(str(where) in text and "free some space" in text for text in refused), refused
    counts = queue.counts()
    assert counts.pending + counts.leased + counts.completed == len(pushed), counts
    assert counts.failed == 0

    for path in ballast:
        path.unlink()
    done = {info.id for info in queue.tasks("completed")}
    for task in held:
        if task.id not in done:
            queue.ack(task)  # what was held is still held
    done = {info.id for info in queue.tasks("completed")}
    work_off_good(queue, *(set(pushed) - done), within=15)
    assert queue.counts() == dfq.Counts(completed=len(pushed))
    queue.push({}, id="afterwards")
    work_off_good(queue, "afterwards")


def test_a_full_disk(small_disk: Any, durability: str) -> None:
    root = small_disk("size=512k").point
    with dfq.open_queue("q", root, durability=durability, shards=2, lease=30) as queue:
        ballast = root / "ballast"
        ballast.write_bytes(b"x" * 256 * 1024)
        check_full_disk(queue, root / "q", [ballast])


def test_a_disk_without_free_inodes(small_disk: Any, durability: str) -> None:
    root = small_disk("size=8m,nr_inodes=150").point
    with dfq.open_queue("q", root, durability=durability, shards=2, lease=30) as queue:
        (root / "ballast").mkdir()
        ballast = [root / "ballast" / str(n) for n in range(60)]
        for path in ballast:
            path.touch()
        check_full_disk(queue, root / "q", ballast)


def test_a_disk_that_turns_read_only(small_disk: Any, durability: str) -> None:
    disk = small_disk("size=4m")
    with dfq.open_queue("q", disk.point, durability=durability, shards=2, lease=30) as queue:
        assert isinstance(queue, FilesystemQueue)
        queue.push({}, id="held")
        (held,) = queue.poll_detached()  # the kernel refuses to remount while a lease is open for writing
        queue.push({}, id="waiting")
        disk.remount("ro")
        for verb in (lambda: queue.push({}, id="new"), queue.poll, queue.purge):
            with pytest.raises(dfq.QueueUnavailable) as refused:
                verb()
            assert str(disk.point / "q") in str(refused.value)
            assert "remount it for writing" in str(refused.value)
        assert queue.counts() == dfq.Counts(pending=1, leased=1)
        assert queue.get("waiting").state == "pending"
        with dfq.open_queue("q", disk.point, durability=durability) as another:  # looking is still possible
            assert another.counts() == dfq.Counts(pending=1, leased=1)
        with pytest.raises(dfq.QueueUnavailable, match="remount"):
            dfq.open_queue("brand-new", disk.point, durability=durability)
        disk.remount("rw")
        queue.ack(held)
        work_off_good(queue, "waiting")
        assert queue.counts() == dfq.Counts(completed=2)


@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
def test_a_detached_lease_on_a_read_only_disk(small_disk: Any, verb: str) -> None:
    disk = small_disk("size=4m")
    with dfq.open_queue("q", disk.point, shards=2, lease=30) as queue:
        assert isinstance(queue, FilesystemQueue)
        queue.push({}, id="held")
        (held,) = queue.poll_detached()
        disk.remount("ro")
        with pytest.raises(dfq.QueueUnavailable, match="remount it for writing"):
            getattr(queue, verb)(held)
        disk.remount("rw")
        queue.ack(held)


def test_a_root_that_anyone_may_write_to_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(dfq.ConfigError, match=f"chmod o-w {root}"):
        dfq.open_queue("q", root)
    root.chmod(0o755)
    with dfq.open_queue("q", root) as queue:
        queue.push({}, id="t")
    (root / "q").chmod(0o777)
    with pytest.raises(dfq.ConfigError, match=f"chmod o-w {root}/q"):
        dfq.open_queue("q", root)


@pytest.mark.parametrize("name", ["frontier", "active-leases", "completed", "failed", "scheduled"])
def test_a_folder_of_a_queue_that_anyone_may_write_to_is_refused(tmp_path: Path, name: str) -> None:
    dfq.open_queue("q", tmp_path).close()
    (tmp_path / "q" / name).mkdir(exist_ok=True)
    dfq.open_queue("q", tmp_path).close()
    (tmp_path / "q" / name).chmod(0o777)
    with pytest.raises(dfq.ConfigError, match=f"chmod o-w {tmp_path}/q/{name}"):
        dfq.open_queue("q", tmp_path)


def test_nobody_is_advised_to_take_everyones_rights_on_tmp(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(dfq.ConfigError) as refused:
        dfq.open_queue("q", tmp_path)
    assert "chmod" not in str(refused.value)
    assert f"use a folder of your own, such as {tmp_path}/my-queues" in str(refused.value)
    dfq.open_queue("q", tmp_path / "my-queues").close()


def test_a_root_that_cannot_be_there_does_not_advise_to_make_it() -> None:
    for create in (True, False):
        with pytest.raises(dfq.QueueUnavailable, match="/proc/x") as refused:
            dfq.open_queue("q", "/proc/x", create=create)
        assert "init" not in str(refused.value)
        with pytest.raises(dfq.ConfigError, match=r"^/dev/null is not a folder$"):
            dfq.open_queue("q", "/dev/null", create=create)


def test_a_queue_or_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(dfq.QueueUnavailable, match=f"there is no queue 'q' in {tmp_path}: make it with 'dfq init'"):
        dfq.open_queue("q", tmp_path, create=False)
    with pytest.raises(dfq.QueueUnavailable, match=f"its root {tmp_path}/typo does not exist"):
        dfq.open_queue("q", tmp_path / "typo", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("hello")
    with pytest.raises(dfq.QueueError, match=str(root)):
        dfq.open_queue("q", root)
    assert root.read_text() == "hello"
