"""Where each file of a queue lies. Every path is built here (ADR 012)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from dfq.names import decode, is_name, shard_of, shard_width

FRONTIER, LEASES, COMPLETED, FAILED, SCHEDULED, RETIRED = (
    "frontier",
    "active-leases",
    "completed",
    "failed",
    "scheduled",
    "retired",
)
PAUSED = "paused"
META = "queue.json"
CLOCK = "clock.json"
FOLDERS = (FRONTIER, LEASES, COMPLETED, FAILED, SCHEDULED, RETIRED)
FILES = (META, CLOCK, PAUSED)

_KEY = re.compile(r"(?P<name>[^~]+)(?:~e(?P<epoch>[1-9][0-9]{0,8}))?").fullmatch
_SLOT_FILE = re.compile(r"(?P<key>[^~]+(?:~e[1-9][0-9]{0,8})?)(?:~(?P<generation>[1-9][0-9]{0,5}))?\.lease").fullmatch
_LANE = re.compile(r"[0-9]").fullmatch
_BUCKET = "%Y%m%dT%H%M%SZ"
_DAY = 86400
_WINDOWS = ((3600, 10), (_DAY, 600), (7 * _DAY, 3600))  # up to so long a delay, so many seconds share a folder


class Entry(NamedTuple):
    """A task file: its name (with the mark of its epoch), where it lies, and where its witness belongs."""

    name: str
    path: str
    lane: int
    witness: str


class Tree:
    """The paths of a queue with so many shards."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self._shard = re.compile(rf"[0-9a-f]{{{shard_width(shards)}}}").fullmatch

    def shard(self, name: str) -> str:
        return shard_of(plain(name), self.shards)

    def entry(self, name: str, lane: int) -> Entry:
        return self.entry_at(f"{FRONTIER}/{lane}/{self.shard(name)}/{name}.json", name, lane)

    def entry_at(self, path: str, name: str, lane: int) -> Entry:
        return Entry(name, path, lane, self.completed(name))

    def slot(self, name: str, generation: int) -> str:
        mark = "" if generation == 1 else f"~{generation}"
        return f"{LEASES}/{self.shard(name)}/{name}{mark}.lease"

    def completed(self, name: str) -> str:
        return f"{COMPLETED}/{self.shard(name)}/{name}.json"

    def failed(self, name: str) -> str:
        return f"{FAILED}/{self.shard(name)}/{name}.json"

    def retired(self, name: str) -> str:
        return f"{RETIRED}/{self.shard(name)}/{name}.json"

    def scheduled(self, name: str, due: float, delay: float) -> str:
        """Return where a task waits: in the folder of a window that its time lies in, the wider the longer it waits.

        So there are some hundreds of folders at most, whatever is scheduled.
        """
        width = window(delay)
        start = datetime.fromtimestamp(due // width * width, UTC)
        return f"{SCHEDULED}/{start.strftime(_BUCKET)}/{name}.json"

    def is_shard(self, folder: str) -> bool:
        return self._shard(folder) is not None


def task_name(filename: str) -> str | None:
    """Return the name of a task from the name of its file; None if it is no task's."""
    if filename.endswith(".json") and not filename.startswith("."):
        key = filename[:-5]
        if is_key(key):
            return key
    return None


def slot_name(filename: str) -> tuple[str, int] | None:
    """Return (name, generation) from the name of a lease file; None if it is not one."""
    found = _SLOT_FILE(filename)
    if found is None or not is_key(found["key"]):
        return None
    generation = int(found["generation"] or 1)
    return (found["key"], generation) if found["generation"] != "1" else None


def is_key(name: str) -> bool:
    """Tell whether this is the name of some id, with or without the mark of an epoch."""
    found = _KEY(name)
    return found is not None and is_name(found["name"])


def plain(name: str) -> str:
    """Return a name without the mark of its epoch (ADR 017)."""
    return name.partition("~")[0]


def epoch_of(name: str) -> int:
    """Return the epoch that a name is marked with."""
    return int(name.partition("~e")[2] or 0)


def in_epoch(name: str, epoch: int) -> str:
    """Return the name of a task in an epoch."""
    return f"{plain(name)}~e{epoch}" if epoch else plain(name)


def id_of(name: str) -> str | None:
    """Return the id that a name stands for; None if it is too long, and only the file has it."""
    return decode(plain(name))


def is_lane(folder: str) -> bool:
    """Tell whether this is the name of a lane."""
    return _LANE(folder) is not None


def bucket_start(folder: str) -> float | None:
    """Return the start of the window that a folder of scheduled tasks is for; None if it is no such folder."""
    try:
        return datetime.strptime(folder, _BUCKET).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def is_bucket(folder: str) -> bool:
    """Tell whether this is the name of a folder of scheduled tasks."""
    return bucket_start(folder) is not None


def window(delay: float) -> int:
    """Return how many seconds share a folder, for tasks that wait so long."""
    return next((width for longest, width in _WINDOWS if delay <= longest), _DAY)


def comes_and_goes(folder: str) -> bool:
    """Tell whether this is a folder that is removed when it is empty."""
    return folder.startswith(f"{SCHEDULED}/")


def parent(path: str) -> str:
    """Return the directory of a path."""
    return path.rpartition("/")[0]
