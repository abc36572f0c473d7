"""A disk that several machines share, such as NFS: others see what was sent to the server, and replies get lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from crash_kit import WatchedDisk, files, open_on, open_plain

import dfq
from dfq.ports import OsDisk
from dfq.providers.filesystem import FilesystemQueue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "q"


def watched(folder: Path, *, local: bool) -> tuple[WatchedDisk, FilesystemQueue]:
    folder.mkdir(exist_ok=True)
    disk = WatchedDisk(folder)
    disk.local = local
    return disk, open_on(disk, folder, durability="fast", auto_heartbeat=False)


def calls_of(disk: WatchedDisk, act: Any) -> list[str]:
    disk.calls.clear()
    disk.armed = True
    act()
    disk.armed = False
    return [call for call in disk.calls if call in ("write", "fsync")]


def test_a_lease_is_sent_to_where_others_see_it_whenever_it_is_written(folder: Path) -> None:
    """An NFS client keeps what is written until the file is closed, and a held lease stays open."""
    disk, queue = watched(folder, local=False)
    queue.push({}, id="t")
    held: list[dfq.Task] = []
    assert calls_of(disk, lambda: held.extend(queue.poll(lease=600))) == ["write", "fsync"]
    assert calls_of(disk, lambda: queue.heartbeat(held[0], extend=900)) == ["write", "fsync"]
    assert calls_of(disk, lambda: queue.nack(held[0])) == ["write", "fsync"]
    queue.close()


def test_a_lease_on_a_disk_of_our_own_waits_for_nothing(folder: Path) -> None:
    disk, queue = watched(folder, local=True)
    queue.push({}, id="t")
    held: list[dfq.Task] = []
    assert calls_of(disk, lambda: held.extend(queue.poll())) == ["write"]
    assert calls_of(disk, lambda: queue.heartbeat(held[0])) == ["write"]
    queue.close()


class ForgetfulDisk(OsDisk):
    """A disk whose server makes a name, loses the reply, and says when asked again that the name exists."""

    lose = ""

    def link(self, fd: int, path: str) -> None:
        super().link(fd, path)
        if self.lose and path.startswith(self.lose):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def forgetful(folder: Path) -> tuple[ForgetfulDisk, FilesystemQueue]:
    folder.mkdir(exist_ok=True)
    disk = ForgetfulDisk(str(folder))
    return disk, open_on(disk, folder, max_attempts=1)


def test_what_was_done_is_done_though_the_reply_was_lost(folder: Path) -> None:
    disk, queue = forgetful(folder)
    disk.lose = "frontier/"
    queue.push({}, id="t")
    disk.lose = "active-leases/"
    (task,) = queue.poll()
    queue.nack(task, error="no use")
    assert files(folder, "failed") == ["failed/0/t.json"]
    assert queue.retry("t") == ["t"]
    assert files(folder, "failed") == []
    (task,) = queue.poll()
    queue.ack(task, result="done")
    assert queue.get("t").result == "done"
    queue.close()


def test_what_another_has_made_is_not_taken_for_ours(folder: Path) -> None:
    with open_plain(folder, max_attempts=1) as queue, open_plain(folder, max_attempts=1) as other:
        queue.push({}, id="t")
        (task,) = queue.poll()
        queue.nack(task, error="no use")
        link = queue._disk.link

        def too_late(fd: int, path: str) -> None:
            queue._disk.link = link  # type: ignore[method-assign]
            other.retry("t")
            link(fd, path)

        queue._disk.link = too_late  # type: ignore[method-assign]
        with pytest.raises(dfq.TaskNotFound):
            queue.retry("t")
