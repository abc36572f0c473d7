"""Checks that were taken out of dfq on purpose: the fuzzing must find each of them, or it proves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from fuzz_oracle import Judge, Violation

import dfq.codec
import dfq.lease
import dfq.names
import dfq.ports
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


def caught_by_queues() -> bool:
    """Tell whether a round notices that a pipe is opened and waited for: it hangs, and is woken by its alarm."""
    import fuzz_queues
    from fuzz_round import SHARDS, OwnedRound, Rounds
    from fuzz_strangers import put, remove

    def opens(disk: Any, path: str, *, write: bool = False) -> int:
        return os.open(disk.where(path), (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW)

    def spoil(one: OwnedRound) -> None:
        path = one.top / "completed" / Tree(SHARDS).shard("bad") / "bad.json"
        made = put("pipe", path, b"", one.outside)
        one.bad += [made] if made else []

    patches = [
        mock.patch.object(dfq.ports.OsDisk, "open", opens),
        mock.patch.object(OwnedRound, "_spoil", spoil),
        mock.patch.object(fuzz_queues, "ROUND", 4.0),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        try:
            fuzz_queues.run_round(0, Rounds())
        except Violation as e:
            remove(getattr(e, "folder", Path("/nowhere")))
            return "Hang" in str(e)
    return False
