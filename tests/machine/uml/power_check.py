"""What must be on a disk after a power cut, going by the marks that were set before it and by the files alone.

Nothing of dfq is used here. The format is that of ADR 012; tasks are known by what is in the files, not by their names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SLOT = re.compile(r"(?P<name>[^~]+)(?:~(?P<generation>\d+))?\.lease")


@dataclass
class Promises:
    """What the callers had been told, and what they had asked for, when the power went."""

    pushed: set[str] = field(default_factory=set)
    acked: dict[str, str] = field(default_factory=dict)  # id -> digest of the witness
    cancelled: set[str] = field(default_factory=set)
    dead: dict[str, str] = field(default_factory=dict)  # nonce of the dead letter -> id
    retried: dict[str, str] = field(default_factory=dict)
    asked: set[tuple[str, ...]] = field(default_factory=set)
    contradictions: list[str] = field(default_factory=list)  # of what was told, whatever the disk says

    @classmethod
    def of(cls, marks: Iterable[str]) -> Promises:
        told = cls()
        for mark in marks:
            when, *words = mark.split("|")
            if when == "begin":
                told.asked.add(tuple(words))
            elif when == "end":
                told._keep(*words)
        for task in told.cancelled & told.acked.keys():
            told.contradictions.append(f"{task}: both a completion and a cancel were accepted")
        return told

    def _keep(self, what: str, task: str, detail: str = "", *_: str) -> None:
        if what == "push":
            self.pushed.add(task)
        elif what == "ack":
            if task in self.acked:
                self.contradictions.append(f"{task}: two completions were accepted")
            self.acked[task] = detail
        elif what == "cancel":
            self.cancelled.add(task)
        elif what == "dead":
            self.dead[detail] = task
        elif what == "retry":
            self.retried[detail] = task

    def __len__(self) -> int:
        return len(self.pushed) + len(self.acked) + len(self.cancelled) + len(self.dead) + len(self.retried)


@dataclass
class Files:
    """What lies in the folder of a queue."""

    entries: dict[str, str] = field(default_factory=dict)  # id -> where it waits
    witnesses: dict[str, bytes] = field(default_factory=dict)
    letters: dict[str, str] = field(default_factory=dict)  # id -> nonce
    tops: dict[str, dict[str, Any]] = field(default_factory=dict)  # name -> the highest slot
    broken: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, queue: Path) -> Files:
        found = cls()
        for path, record, _ in found._records(queue, "frontier", "scheduled"):
            task, payload = record.get("id"), record.get("payload")
            if not isinstance(task, str) or payload != expected_payload(task):
                found.broken.append(f"{path}: not the payload that was pushed")
            else:
                found.entries[task] = path
        for path, record, raw in found._records(queue, "completed"):
            task = record["task_id"]
            if task in found.witnesses:
                found.broken.append(f"{path}: a second witness of {task}")
            found.witnesses[task] = raw
        for _, record, _ in found._records(queue, "failed"):
            found.letters[record["task_id"]] = record["nonce"]
        found._read_slots(queue)
        return found

    def _records(self, queue: Path, *folders: str) -> Iterator[tuple[str, dict[str, Any], bytes]]:
        for folder in folders:
            for path in sorted((queue / folder).rglob("*.json")):
                raw = path.read_bytes()
                try:
                    record = json.loads(raw)
                except ValueError:
                    # These get their names only once their content is durable.
                    self.broken.append(f"{path.relative_to(queue)}: {len(raw)} bytes that are not a whole record")
                else:
                    yield str(path.relative_to(queue)), record, raw

    def _read_slots(self, queue: Path) -> None:
        slots: dict[str, dict[int, Path]] = {}
        for path in (queue / "active-leases").rglob("*.lease"):
            if match := _SLOT.fullmatch(path.name):
                slots.setdefault(match["name"], {})[int(match["generation"] or 1)] = path
        for name, log in slots.items():
            generation = 0
            while generation + 1 in log:
                generation += 1
            if generation:
                try:
                    self.tops[name] = json.loads(log[generation].read_bytes())
                except ValueError:
                    self.tops[name] = {}  # leases are not flushed

    def is_dead_by(self, task: str, nonce: str) -> bool:
        """Tell whether a task is dead, and by this letter: then its highest slot is that letter."""
        return self.tops.get(task.replace("/", "%2F"), {}).get("nonce") == nonce


def expected_payload(task: str) -> dict[str, Any]:
    return {"task": task, "filler": hashlib.sha256(task.encode()).hexdigest() * 3}


def lost(promises: Promises, files: Files) -> list[str]:
    """Return which promises are broken on a disk that nobody has touched since the power cut."""
    wrong = [*promises.contradictions, *files.broken]
    for task in sorted(promises.pushed):
        if task not in files.entries and task not in files.witnesses:
            wrong.append(f"{task}: it was pushed, and is neither waiting nor completed")
    for task in promises.acked:
        if task not in files.witnesses:
            wrong.append(f"{task}: its completion was accepted, and there is no witness of it")
    wrong += _changed(promises, files)
    for task in promises.cancelled:
        if task not in files.witnesses:
            wrong.append(f"{task}: it was cancelled, and nothing shows it")
    for nonce, task in promises.dead.items():
        over = ("cancel", task) in promises.asked or ("retry", task, nonce) in promises.asked
        if not over and not files.is_dead_by(task, nonce):
            wrong.append(f"{task}: it was a dead letter, and no longer is")
    for nonce, task in promises.retried.items():
        # What is completed may have lost its higher slots already: then it is over, whatever is left of them.
        if task not in files.witnesses and files.is_dead_by(task, nonce):
            wrong.append(f"{task}: it was put back, and is a dead letter again")
    return wrong


def _changed(promises: Promises, files: Files) -> list[str]:
    wrong = []
    for task, digest in promises.acked.items():
        witness = files.witnesses.get(task)
        if witness is not None and hashlib.sha256(witness).hexdigest() != digest:
            wrong.append(f"{task}: the witness is not the one that its completion left")
    for task in promises.cancelled:
        witness = files.witnesses.get(task)
        if witness is not None and json.loads(witness).get("state") != "cancelled":
            wrong.append(f"{task}: it was cancelled, and is completed")
    return wrong


def undone(promises: Promises, before: Files, after: Files, ran: list[str]) -> list[str]:
    """Return what is wrong once a fresh worker has done all that there was to do; `ran` is what it was given."""
    wrong = [*after.broken, *_changed(promises, after)]
    over = promises.acked.keys() | promises.cancelled
    wrong += [f"{task}: it was over, and was handed out again" for task in ran if task in over]
    wrong += [f"{task}: it was handed out twice" for task in set(ran) if ran.count(task) > 1]
    for task, witness in before.witnesses.items():
        if after.witnesses.get(task) != witness:
            wrong.append(f"{task}: its witness was there after the power cut, and is gone or another now")
    for task in sorted(promises.pushed | before.entries.keys() | before.witnesses.keys()):
        ends = (task in after.witnesses) + (task in after.letters)
        if ends != 1:
            wrong.append(f"{task}: {'both completed and failed' if ends else 'neither completed nor failed'}")
    for task in after.entries:
        if task not in after.letters:
            wrong.append(f"{task}: still waiting at {after.entries[task]}")
    if left := after.tops.keys() - {task.replace("/", "%2F") for task in after.letters}:
        wrong.append(f"leases are left of {sorted(left)[:5]}")
    return wrong
