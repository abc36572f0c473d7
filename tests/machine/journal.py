"""What befell each task, written down as it happens; and whether that is what a queue may do.

The checker knows nothing of the code under test: it reads these lines, and the files of the queue as JSON.
Each line is one write to a file that is only ever appended to, on a disk that is never full.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH = 2**32  # a token is epoch * 2^32 + generation


class Journal:
    """A file that many processes append to."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)

    def note(self, event: str, task_id: str = "-", token: int = 0, mark: str = "-") -> None:
        """Write down: pushed, run, acked, cancelled, rerun, refused."""
        os.write(self._fd, f"{event} {task_id} {token} {mark}\n".encode())


@dataclass
class Life:
    """One epoch of a task: what was done, and what is left of it on disk."""

    runs: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))  # token -> marks
    acks: list[tuple[int, str]] = field(default_factory=list)
    witness: dict[str, Any] | None = None
    letter: dict[str, Any] | None = None


@dataclass
class Found:
    """What the checker makes of it."""

    lost: list[str] = field(default_factory=list)
    double: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    tasks: int = 0
    runs: int = 0
    acks: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    reruns: int = 0
    refused: int = 0
    logged: int = 0  # acks of workers that keep a log

    @property
    def all(self) -> list[str]:
        return [*self.lost, *self.double, *self.wrong]


def judge(journal: Iterable[str], folder: Path, logs: Iterable[str] = ()) -> Found:
    """Compare a journal (and the logs of workers that write JSON) with the files of a queue in which all is over."""
    found = Found()
    lives: dict[tuple[str, int], Life] = defaultdict(Life)
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))  # event -> id -> how often
    for line in journal:
        event, task_id, token_text, mark = line.split()
        token = int(token_text)
        life = lives[task_id, token // EPOCH] if event in ("run", "acked") else None
        if event == "run" and life is not None:
            life.runs[token].append(mark)
        elif event == "acked" and life is not None:
            life.acks.append((token, mark))
        else:
            counts[event][task_id] += 1
    for task_id in done_in(logs):
        counts["logged"][task_id] += 1
    _read_files(folder, lives, found)
    epochs: dict[str, list[int]] = defaultdict(list)
    for (task_id, epoch), life in lives.items():
        epochs[task_id].append(epoch)
        _judge_life(f"{task_id} (epoch {epoch})", life, found)
    for task_id in counts["pushed"]:
        if task_id not in epochs:
            found.lost.append(f"{task_id}: was pushed, and there is no trace of it")
    _judge_counts(counts, epochs, lives, found)
    found.tasks, found.reruns = len(epochs), sum(counts["rerun"].values())
    found.logged = sum(counts["logged"].values())
    found.refused = sum(counts["refused"].values())
    return found


def _judge_life(name: str, life: Life, found: Found) -> None:
    witness, letter = life.witness, life.letter
    found.runs += sum(len(marks) for marks in life.runs.values())
    found.acks += len(life.acks)
    if witness is None and letter is None:
        found.lost.append(f"{name}: is neither completed nor failed nor cancelled")
    if witness is not None and letter is not None:
        found.wrong.append(f"{name}: is both over and failed")
    done = witness is not None and witness["state"] == "done"
    found.completed += done
    found.cancelled += witness is not None and not done
    found.failed += letter is not None
    for token, marks in life.runs.items():
        if len(marks) > 1:
            found.double.append(f"{name}: token {token} was handed out {len(marks)} times")
    if len(life.acks) > 1:
        found.double.append(f"{name}: {len(life.acks)} acks were accepted: {life.acks}")
    for token, mark in life.acks:
        if not done or witness is None or (witness["token"], witness["result"]) != (token, mark):
            found.double.append(f"{name}: the ack of token {token} was accepted, and the witness is {witness}")
    if done and witness is not None:
        if witness["result"] not in life.runs.get(witness["token"], []):
            found.wrong.append(f"{name}: its witness tells of a run that nobody saw: {witness}")
        if life.runs and max(life.runs) > witness["token"]:
            found.double.append(
                f"{name}: token {witness['token']} was accepted, and {max(life.runs)} had superseded it"
            )


def _judge_counts(
    counts: dict[str, dict[str, int]],
    epochs: dict[str, list[int]],
    lives: dict[tuple[str, int], Life],
    found: Found,
) -> None:
    """What was answered must have happened: reruns, cancels, and the acks that workers logged."""

    def with_state(task_id: str, state: str) -> int:
        witnesses = (lives[task_id, epoch].witness for epoch in epochs.get(task_id, []))
        return sum(witness is not None and witness["state"] == state for witness in witnesses)

    for task_id, times in counts["rerun"].items():
        if max(epochs.get(task_id, [0])) < times:
            found.lost.append(f"{task_id}: was put back {times} times, and has the epochs {epochs.get(task_id)}")
    for task_id, times in counts["cancelled"].items():
        if with_state(task_id, "cancelled") < times:
            found.wrong.append(
                f"{task_id}: was cancelled {times} times, and {with_state(task_id, 'cancelled')} tell so"
            )
    for task_id, times in counts["logged"].items():
        if (told := with_state(task_id, "done")) < times:
            found.double.append(f"{task_id}: {times} acks were logged, and {told} witnesses tell so")


def _read_files(folder: Path, lives: dict[tuple[str, int], Life], found: Found) -> None:
    for record, path in _records(folder / "completed"):
        life = lives[record["task_id"], record["epoch"]]
        if life.witness is not None:
            found.double.append(f"{path}: a second witness of {record['task_id']}")
        life.witness = record
    waiting = set()
    for record, path in _records(folder / "failed"):
        lives[record["task_id"], record["epoch"]].letter = record
        waiting.add(path.name)
    for top in ("frontier", "scheduled"):
        for path in (folder / top).rglob("*.json"):
            if path.name not in waiting:
                found.wrong.append(f"{path} was left behind")
    names = {name.removesuffix(".json") for name in waiting}
    for path in (folder / "active-leases").rglob("*.lease"):
        if _task_of(path.name.removesuffix(".lease")) not in names:
            found.wrong.append(f"{path} was left behind")


def _task_of(slot: str) -> str:
    """Return the task that a slot is of: <name>, <name>~3, <name>~e1, <name>~e1~3."""
    name, tilde, last = slot.rpartition("~")
    return name if tilde and last.isdecimal() else slot


def _records(folder: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    for path in sorted(folder.rglob("*.json")):
        yield json.loads(path.read_bytes()), path


def done_in(logs: Iterable[str]) -> Iterator[str]:
    """Yield the ids of the tasks that a worker's log, in JSON, calls done. Its last line may be cut off by a kill."""
    for line in logs:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("outcome") == "done":
            yield record["task"]
