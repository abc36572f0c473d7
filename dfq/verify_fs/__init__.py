"""Whether a filesystem keeps the promises that the lease protocol stands on, shown by racing processes on it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from dfq.mounts import mount_of
from dfq.trouble import trouble
from dfq.verify_fs import files, locks, names
from dfq.verify_fs.calls import Calls
from dfq.verify_fs.promise import Broken, Ground, Outcome, Promise, Weaker

ROUNDS, PROCESSES = 200, 4
PREFIX = ".dfq-verify-fs-"

_NOT_THE_FILESYSTEM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EAGAIN)
_AT_ITS_ACK = "a worker may learn only from its ack that its task was cancelled: run none for over ten lease times"
_BY_TIME = "leases go by time here: a dead worker's task comes back when its lease runs out"

_TAKEN_FROM_THE_LIVING = "leases of live workers would be taken over"

PROMISES = (
    Promise("exclusive create", names.exclusive_create, "two workers would get the same lease"),
    Promise("exclusive link", names.exclusive_link, "a task would be completed twice"),
    Promise("create against link", names.create_against_link, "a task would be taken over and completed at once"),
    Promise("link count", files.link_count, "a worker would not learn that its task is over", _AT_ITS_ACK),
    Promise("unnamed files", files.unnamed_files, "half-written tasks would be seen"),
    Promise("writes in place", files.writes_are_seen, "a renewed lease would look stale"),
    Promise("lock between processes", locks.between_processes, _TAKEN_FROM_THE_LIVING, _BY_TIME),
    Promise("lock ends with its process", locks.ends_with_its_process, "tasks of dead workers would wait", _BY_TIME),
    Promise("lock does not end before", locks.and_not_before, _TAKEN_FROM_THE_LIVING, _BY_TIME),
    Promise("atomic rename", names.atomic_rename, "a file that is being replaced would seem to be gone"),
    Promise("exclusive rename", names.exclusive_rename, "two would claim the same file"),
    Promise("flushing", files.flushing, "a power cut would lose tasks: durability = full cannot be had"),
    Promise("folder times", files.directory_times, "new tasks would not be noticed"),
    Promise("file events", files.events, files.IF_BLIND),
    Promise("long names", names.long_names, "tasks with long ids could not be stored"),
    Promise("upper and lower case", names.case, "tasks whose ids differ in case would be one"),
    Promise("any character", names.characters, "tasks with such ids could not be stored, or would be one"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of one promise; `means` says what follows if it is not kept in full."""

    promise: str
    outcome: Outcome
    found: str
    means: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a filesystem is, and how it keeps each promise."""

    path: str
    kind: str
    local: bool
    verdicts: tuple[Verdict, ...]
    left_behind: str | None  # a folder that could not be removed again

    @property
    def fit(self) -> bool:
        """True if a queue can live here."""
        return all(v.outcome != "broken" for v in self.verdicts)


def verify(
    path: str,
    *,
    rounds: int = ROUNDS,
    processes: int = PROCESSES,
    calls: Callable[[str], Calls] = Calls,
    promises: tuple[Promise, ...] = PROMISES,
) -> Report:
    """Return how the filesystem of a folder keeps its promises, tried out in a subfolder that is removed again.

    Raises QueueUnavailable where nothing can be tried out: the folder cannot be written to, the disk is full.
    """
    path = os.path.realpath(path)
    mount = mount_of(path)
    local = mount is not None and mount.local
    shown = f"{mount.kind}, {mount.device} on {mount.point}" if mount else "unknown"
    where = Verdict("local filesystem", *(("kept", shown) if local else ("weaker", shown, _BY_TIME)))
    verdicts = [where]
    with trouble("verify-fs", path):
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=path)
        try:
            for promise in promises:
                place = os.path.join(folder, promise.name.replace(" ", "-"))
                os.mkdir(place)
                verdicts.append(_judge(promise, Ground(calls(place), processes, rounds)))
                shutil.rmtree(place, ignore_errors=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    left = folder if os.path.lexists(folder) else None
    return Report(path, mount.kind if mount else "unknown", local, tuple(verdicts), left)


def _judge(promise: Promise, ground: Ground) -> Verdict:
    try:
        found = promise.check(ground)
    except Broken as e:
        if promise.if_remote and not ground.disk.local:
            return Verdict(promise.name, "weaker", str(e), promise.if_remote)
        return Verdict(promise.name, "broken", str(e), promise.if_broken)
    except Weaker as e:
        return Verdict(promise.name, "weaker", str(e), e.means)
    except TimeoutError:
        return Verdict(promise.name, "broken", "a process of the check got stuck", promise.if_broken)
    except OSError as e:
        if e.errno in _NOT_THE_FILESYSTEM:
            raise
        return Verdict(promise.name, "broken", f"the system says: {e.strerror}", promise.if_broken)
    if promise.if_remote == _BY_TIME and not ground.disk.local:
        # It may well hold for the processes of this machine; whether others see it cannot be tried from here.
        return Verdict(promise.name, "weaker", f"{found}, on this machine", promise.if_remote)
    return Verdict(promise.name, "kept", found)
