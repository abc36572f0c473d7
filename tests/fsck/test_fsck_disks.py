"""fsck on disks that refuse: it goes on, tells what it could not look at, and claims no repair that was not made."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from fsck_kit import Ground

from dfq.ports import OsDisk
from dfq.providers.filesystem import FilesystemQueue


class Refusing(OsDisk):
    """A disk that fails at some call for some path."""

    def __init__(self, folder: str, call: str, part: str, code: int) -> None:
        super().__init__(folder)
        inner = getattr(self, call)

        def refuse(path: str, *args: Any, **options: Any) -> Any:
            if part in path:
                raise OSError(code, os.strerror(code), path)
            return inner(path, *args, **options)

        setattr(self, call, refuse)


def on(ground: Ground, disk: Refusing) -> FilesystemQueue:
    return FilesystemQueue("q", ground.settings, disk, create=False, where=str(ground.folder))


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("part", ["frontier/5", "completed", "active-leases"])
def test_a_file_that_cannot_be_read_is_named(ground: Ground, part: str, code: int) -> None:
    ground.done("x")
    ground.push()
    ground.queue.poll_detached()
    before = ground.tree_of_files()
    with on(ground, Refusing(str(ground.folder), "open", part, code)) as queue:
        for repair in (False, True):
            found = list(queue.fsck(repair=repair, settle=0))
            unreadable = [f for f in found if f.code == "unreadable"]
            assert [f.path.startswith(part) for f in unreadable] == [True]
            assert unreadable[0].level == "must"
    assert ground.tree_of_files() == before


@pytest.mark.parametrize("call", ["scan", "look"])
@pytest.mark.parametrize("part", ["frontier", "completed", "active-leases", "failed", "scheduled/2"])
def test_a_folder_that_cannot_be_read_is_no_reason_to_repair_anything(ground: Ground, part: str, call: str) -> None:
    ground.done("x")
    ground.dead("y")
    ground.push("z", delay=1000)
    ground.push()
    before = ground.tree_of_files()
    with on(ground, Refusing(str(ground.folder), call, part, errno.EIO)) as queue:
        found = list(queue.fsck(repair=True, settle=0))
    assert "unreadable" in {f.code for f in found}
    assert [f for f in found if f.repaired] == []
    assert ground.tree_of_files() == before


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_repair_that_the_disk_refuses_is_not_said_to_be_made(ground: Ground, code: int) -> None:
    ground.push()
    kept = ground.task().read_bytes()
    ground.queue.ack(ground.claim())
    ground.task().write_bytes(kept)
    with on(ground, Refusing(str(ground.folder), "unlink", "frontier", code)) as queue:
        (finding,) = queue.fsck(repair=True, settle=0)
    assert (finding.code, finding.repairable, finding.repaired) == ("leftover-task", True, False)
    assert [f.repaired for f in ground.check(repair=True)] == [True]


def test_a_dead_letter_stays_while_its_slot_cannot_be_read(ground: Ground) -> None:
    ground.dead()
    with on(ground, Refusing(str(ground.folder), "open", "t~2.lease", errno.EACCES)) as queue:
        assert [f.code for f in queue.fsck(repair=True, settle=0)] == ["unreadable"]
    assert ground.failed().exists()
