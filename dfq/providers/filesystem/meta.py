"""queue.json: what every process that opens a queue must agree on, and whether the folder is fit for it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from dfq.codec import dumps, iso, loads, nonce
from dfq.errors import ConfigError, InvalidTask, QueueUnavailable
from dfq.mounts import filesystem_kind
from dfq.ports import Clock
from dfq.stores.disk import DiskStore
from dfq.tree import COMPLETED, FAILED, FOLDERS, FRONTIER, LEASES, META, SCHEDULED
from dfq.values import shown

FORMAT = 1
READ_LIMIT = 64 * 1024


def shards_of(store: DiskStore, clock: Clock, *, create: bool, shards: int, where: str, mode: str = "owned") -> int:
    """Return the number of shards of the queue, which is made first if need be.

    Raises QueueUnavailable for a queue that is not there, is damaged, or was made by a newer version.
    """
    raw = store.read(META, READ_LIMIT)
    if raw is None:
        if not create:
            raise QueueUnavailable(f"there is no queue in {where}: make it with 'dfq init'")
        _refuse_headless(store, where)
        _write(store, clock, shards, where, mode)
        raw = store.read(META, READ_LIMIT)
    file = f"{where}/{META}"
    if not raw and (facts := store.disk.look(META)) is not None and (not facts.regular or facts.size):
        what = "cannot be read" if facts.regular else "is a folder" if facts.directory else "is a link or a device"
        raise QueueUnavailable(f"{file} {what}, where a file belongs that may be read: restore it")
    try:
        meta = loads(raw or b"", file)
    except InvalidTask as e:
        raise QueueUnavailable(f"{e}; restore it, or move the folder away") from None
    version, found = meta.get("format"), meta.get("shards")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise QueueUnavailable(f"{file}: field 'format' is {shown(version)}: not a queue that this version knows")
    if version > FORMAT:
        raise QueueUnavailable(
            f"{file}: format {shown(version)}, and this version of dfq reads up to {FORMAT}: upgrade dfq"
        )
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= 4096:
        raise QueueUnavailable(f"{file}: field 'shards' is {shown(found)}: it must be 1 to 4096")
    made = meta.get("frontier_mode", "owned")
    if made != mode:
        raise ConfigError(f"setting frontier_mode = {mode!r}: the queue in {where} was made with {shown(made)}")
    return found


def _refuse_headless(store: DiskStore, where: str) -> None:
    """Raise QueueUnavailable for a tree that has lost its queue.json: a new one might not fit the tasks in it."""
    if any(store.disk.look(folder) for folder in FOLDERS) and store.read(META, READ_LIMIT) is None:
        raise QueueUnavailable(
            f"{where}/{META} is missing, but there is a queue: restore it, with the number of shards that the queue "
            'was made with, as in {"format": 1, "shards": 256}'
        )


def _write(store: DiskStore, clock: Clock, shards: int, where: str, mode: str) -> None:
    meta: dict[str, object] = {
        "format": FORMAT,
        "queue_id": nonce(),
        "created_at": iso(clock.wall()),
        "shards": shards,
    }
    if mode != "owned":
        meta["frontier_mode"] = mode
    staged = store.stage(dumps(meta) + b"\n")
    try:
        with contextlib.suppress(FileExistsError):  # another process makes the same queue
            store.disk.link(staged, META)
    except OSError as e:
        if e.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        kind = filesystem_kind(where)
        raise ConfigError(
            f"{where}: this filesystem ({kind}) has no hard links, which the queue needs: use one such as ext4; "
            f"'dfq verify-fs {where}' tells what else it lacks"
        ) from None
    finally:
        store.drop(staged)
    if store.durable:
        store.disk.fsync_dir(".")


def refuse_unsafe(folder: str) -> None:
    """Raise ConfigError for a folder in which anybody could plant or take tasks."""
    mode = os.lstat(folder).st_mode
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"{folder} is not a folder")
    if mode & stat.S_IWOTH:
        # A folder with the sticky bit, such as /tmp, is everyone's on purpose: taking that away breaks the machine.
        own = f"use a folder of your own, such as {folder.rstrip('/')}/my-queues"
        raise ConfigError(
            f"{folder} is writable by everyone (mode {stat.S_IMODE(mode):o}), so anyone could plant or take tasks: "
            + (own if mode & stat.S_ISVTX else f"chmod o-w {folder}")
        )


def refuse_unsafe_within(folder: str) -> None:
    """Raise ConfigError if anybody could plant or take tasks in one of the folders of a queue."""
    for name in (FRONTIER, LEASES, COMPLETED, FAILED, SCHEDULED):
        inside = f"{folder}/{name}"
        # What is no folder is not used: the store refuses it, whatever it is.
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(inside).st_mode):
                refuse_unsafe(inside)
