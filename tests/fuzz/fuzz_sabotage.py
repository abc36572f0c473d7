"""Checks that were taken out of dfq on purpose: the fuzzing must find each of them, or it proves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from fuzz_oracle import Judge

import dfq.codec
import dfq.lease
import dfq.names
import dfq.ports
from dfq.providers.filesystem.schedule import Schedule
from dfq.tree import Tree


@dataclass(frozen=True, slots=True)
class Sabotage:
    """What was taken out, and the target that must notice."""

    target: str
    patches: Callable[[], list[Any]]

    @contextlib.contextmanager
    def done(self) -> Iterator[None]:
        """Leave the check out for as long as a block lasts."""
        with contextlib.ExitStack() as stack:
            for patch in self.patches():
                stack.enter_context(patch)
            yield


def _unlimited_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _careless_loads(raw: bytes, where: str) -> dict[str, Any]:
    value = json.loads(raw.decode())
    return value if isinstance(value, dict) else {}


def _trusting_read_task(raw: bytes, entry: Any, limit: int) -> dict[str, Any]:
    task = dfq.codec.loads(raw, entry.path)
    return {"id": "x", "payload": None, "encoding": "json"} | task


SABOTAGES: dict[str, Sabotage] = {
    "no limit to the nesting": Sabotage(
        "task", lambda: [mock.patch.object(dfq.codec, "_is_deep_tree", return_value=False)]
    ),
    "no limit to numbers": Sabotage("lease", lambda: [mock.patch.object(dfq.lease, "number", _unlimited_number)]),
    "errors of the JSON parser let through": Sabotage(
        "lease", lambda: [mock.patch.object(dfq.lease, "loads", _careless_loads)]
    ),
    "the id of a task not compared with its name": Sabotage(
        "task", lambda: [mock.patch("fuzz_files.read_task", _trusting_read_task)]
    ),
    "any name with a hash taken for an id's": Sabotage(
        "receipt",
        lambda: [
            mock.patch.object(dfq.names, "is_hashed", lambda name: re.search(r"%h[0-9a-f]{32}$", name) is not None)
        ],
    ),
    "escapes in names decoded without a look back": Sabotage(
        "file name", lambda: [mock.patch.object(dfq.names, "encode", lambda task_id: task_id.replace("/", "%2F"))]
    ),
}

ROUNDS = 100  # of some drawings each, in which a sabotage must be noticed


def caught_by_hypothesis(name: str, seed: int) -> bool:
    """Tell whether the target of a sabotage notices it."""
    from fuzz_engines import hypothesis_round
    from fuzz_targets import TARGETS

    def notices(number: int) -> bool:
        return hypothesis_round(judge, TARGETS[sabotage.target], number, shrink=False) is not None

    sabotage = SABOTAGES[name]
    judge = Judge()
    with sabotage.done():
        return any(notices(seed + n) for n in range(ROUNDS))


def _waiting_open(disk: Any, path: str, *, write: bool = False) -> int:
    return os.open(disk.where(path), (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW)


#: Sabotages that a round over a whole queue must notice: what is taken out, where something bad lies, what is said.
IN_QUEUES: dict[str, tuple[Callable[[], Any], list[tuple[str, str, bytes]], str]] = {
    "a pipe is opened and waited for": (
        lambda: mock.patch.object(dfq.ports.OsDisk, "open", _waiting_open),
        [("pipe", "completed/{s}/bad.json", b"")],
        "Hang",
    ),
    "a scheduled task goes for a stranger that has its name": (
        lambda: mock.patch.object(Schedule, "_check_duplicate"),
        [("pipe", "frontier/5/{s}/bad.json", b""), ("file", "scheduled/20200101T000000Z/bad.json", b'{"id": "bad"}')],
        "lost",
    ),
}


def caught_by_queues(name: str) -> bool:
    """Tell whether a round over a whole queue notices a sabotage."""
    import fuzz_queues
    from fuzz_round import SHARDS, OwnedRound, Rounds
    from fuzz_strangers import put, remove

    sabotage, strangers, said = IN_QUEUES[name]

    def spoil(one: OwnedRound) -> None:
        for kind, path, data in strangers:
            made = put(kind, one.top / path.replace("{s}", Tree(SHARDS).shard("bad")), data, one.outside)
            one.bad += [made] if made else []

    with contextlib.ExitStack() as stack:
        stack.enter_context(sabotage())
        stack.enter_context(mock.patch.object(OwnedRound, "_spoil", spoil))
        stack.enter_context(mock.patch.object(fuzz_queues, "ROUND", 6.0))
        try:
            fuzz_queues.run_round(0, Rounds())
        except fuzz_queues.Failed as e:
            remove(e.folder)
            return said in str(e)
    return False
