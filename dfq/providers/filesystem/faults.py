"""What can be wrong with the files of a queue, by a code that does not change (ADR 012).

"must" is what loses data or completes a task twice: a person has to look. "should" does neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Level = Literal["must", "should"]
Repair = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that contradicts the format, where, and what to do about it."""

    code: str
    level: Level
    path: str
    found: str
    fix: str
    repairable: bool = False
    repaired: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.code, self.path


class Suspect(NamedTuple):
    """A finding that is not confirmed yet, and how to repair it."""

    finding: Finding
    repair: Repair | None = None


def suspect(code: str, path: str, found: str, repair: Repair | None = None) -> Suspect:
    """Return a finding of a known kind."""
    level, fix = FAULTS[code]
    return Suspect(Finding(code, level, path, found, fix, repairable=repair is not None), repair)


#: code -> (level, what the repair does, or what a person should do)
FAULTS: dict[str, tuple[Level, str]] = {
    # the queue as a whole
    "queue-missing": ("must", "put queue.json back from a backup: without it nobody knows the number of shards"),
    "queue-bad": ("must", "put queue.json back from a backup; no two queues share one"),
    "queue-newer": ("must", "upgrade dfq: nothing here was checked"),
    "bad-clock": ("should", "repair writes it anew; until then nothing is removed for its age"),
    "bad-paused": ("should", "the queue is paused all the same; 'dfq resume', or remove what is there"),
    # what lies around
    "not-a-folder": ("must", "move it away and put the folder back: what it held is not seen"),
    "not-a-file": ("should", "it is not opened and stays; move it away"),
    "stray": ("should", "it is none of the queue's files and stays; move it away"),
    "bad-name": ("should", "no id has this name, so it is no task and stays; push it under its id, or move it away"),
    "old-temporary": ("should", "repair removes it once this machine's clock is known to be right for an hour"),
    "wrong-shard": ("should", "nobody looks for it there; move it to the shard of its name"),
    "wrong-shard-proof": ("must", "move it to the shard of its name before a worker runs the task again"),
    "world-writable": ("should", "anyone could plant or take tasks: chmod o-w"),
    "extra-link": ("should", "it has a name outside the queue: remove that, or keep backups as copies"),
    "unreadable": ("must", "check who owns it, its mode, and with dmesg whether the device fails"),
    # tasks
    "bad-task": ("must", "it is buried when it is claimed, and its bytes stay; put the file right, then 'dfq retry'"),
    "wrong-lane": ("should", "it is served in the lane where it lies; move it if that is not meant"),
    "wrong-epoch": ("should", "it runs as the epoch of its name; rename it if that is not meant"),
    "duplicate": (
        "must",
        "one of them runs and the other goes with it: push the payload that matters under another id",
    ),
    "duplicate-copy": ("should", "one of them runs and the other goes with it: nothing to do"),
    "half-moved": ("should", "repair removes it from scheduled/, as whoever moved it would have"),
    "leftover-task": ("should", "repair removes it: the task is completed"),
    # the schedule
    "bad-bucket": ("should", "its tasks never come due: move them into a folder named as 20261118T094105Z"),
    "wrong-bucket": ("should", "it comes due as its own file says; nothing to do"),
    "empty-bucket": ("should", "repair removes the folder"),
    # slots
    "leftover-slots": ("should", "repair removes them: the task is completed"),
    "orphan-slots": ("should", "they stay, as nothing guards their names; a push of the same id goes on above them"),
    "slot-gap": ("should", "the next claims fill it: nothing to do"),
    "torn-lease": ("should", "the next claim takes it over: nothing to do"),
    "slot-contradicts": ("must", "it was copied or renamed, so a token may be given out twice: look who did that"),
    "done-overtaken": ("must", "the task may run again although it was completed: look at what its slots say"),
    "unfinished-completion": ("should", "repair finishes it, as the next claim would"),
    # dead letters
    "unshown-letter": ("should", "repair links it into failed/, as the next claim would"),
    "stale-letter": ("should", "repair removes the link: the task is dead no more, or died again since"),
    "orphan-letter": ("should", "its task is gone, so it cannot be put back; push its payload again, or remove it"),
    "bad-letter": ("must", "its errors are lost; the task is in the frontier, 'dfq show' tells its state"),
    "failed-and-completed": ("should", "repair removes the dead letter: the witness counts"),
    # witnesses
    "bad-witness": (
        "must",
        "the proof is damaged and stays; if the task must be done for sure, push it with if_exists='rerun'",
    ),
    "witness-contradicts": ("must", "it was copied or renamed and proves nothing: find the task that it speaks of"),
    "no-anchor": ("must", "put the witness of epoch 0 back: a push takes the id for a new one"),
    "epoch-gap": ("must", "put the witness of the epoch before back: the id may be run again in an earlier epoch"),
    "retired-proof": ("must", "remove the link in retired/: the witness goes with it after an hour"),
    "stale-guard": ("should", "repair removes the link: its witness is gone, or another"),
    "unlisted-stub": ("should", "repair lists it in retired/; until then it counts as completed"),
}
