"""Checking a queue that may be too damaged to be opened as usual."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from dfq.config import Settings
from dfq.errors import QueueUnavailable, Unsupported
from dfq.names import check_queue_name
from dfq.ports import OsDisk, SystemClock
from dfq.providers.filesystem.audit import WORLD_WRITABLE
from dfq.providers.filesystem.faults import Finding, suspect
from dfq.providers.filesystem.fsck import Progress, check_meta
from dfq.providers.filesystem.queue import FilesystemQueue
from dfq.stores.disk import DiskStore
from dfq.trouble import trouble


def check_queue(
    name: str,
    settings: Settings,
    *,
    repair: bool = False,
    settle: float | None = None,
    progress: Progress | None = None,
) -> Iterator[Finding]:
    """Iterate over what is wrong with the queue <root>/<name>, also if it cannot be opened.

    Raises QueueUnavailable if there is no such folder.
    """
    if settings.frontier_mode != "owned":
        raise Unsupported(f"frontier_mode = {settings.frontier_mode!r}: the frontier is another's, and not checked")
    root = os.path.realpath(os.path.expanduser(str(settings.root)))
    folder = os.path.join(root, check_queue_name(name))
    with trouble(f"check queue {name!r}", folder):
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise QueueUnavailable(f"{folder} is no folder, so there is no queue in it")
        mode = os.stat(root).st_mode
        if mode & WORLD_WRITABLE:
            yield suspect("world-writable", root, f"mode {stat.S_IMODE(mode):o}").finding
        disk = OsDisk(folder)
        broken = check_meta(DiskStore(disk, durable=False), SystemClock(), folder)
    if broken is not None:
        yield broken
        return
    # Not by open(): that refuses a folder which is writable by everyone, and here it is to be told.
    with FilesystemQueue(name, settings, disk, create=False, where=folder) as queue:
        yield from queue.fsck(repair=repair, settle=settle, progress=progress)
