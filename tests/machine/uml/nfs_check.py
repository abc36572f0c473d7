"""What must hold for a queue over NFS, going by what its users wrote down and by the files on the server.

Nothing of dfq is used here.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Claim(NamedTuple):
    task: str
    token: int
    host: str
    at: float


@dataclass
class Told:
    """What the processes were told."""

    pushed: set[str] = field(default_factory=set)
    claims: list[Claim] = field(default_factory=list)
    acks: list[tuple[str, int]] = field(default_factory=list)
    refused: list[tuple[str, int]] = field(default_factory=list)  # acks that ended with "lease lost"
    lost: int = 0
    mine: int = 0
    troubles: int = 0

    @classmethod
    def of(cls, logs: Path, name: str) -> Told:
        told = cls()
        for log in sorted(logs.glob(f"{name}-*")):
            tried: tuple[str, int] | None = None
            for line in log.read_text().splitlines():
                what, *words, at = line.split(" ")
                if what == "push":
                    told.pushed.add(words[0])
                elif what == "claim":
                    told.claims.append(Claim(words[0], int(words[1]), words[2], float(at)))
                elif what == "try":
                    tried = (words[0], int(words[1]))
                elif what == "ack":
                    told.acks.append((words[0], int(words[1])))
                elif what == "lost":
                    told.lost += 1
                    if tried == (words[0], int(words[1])):
                        told.refused.append(tried)
                elif what == "mine":
                    told.mine += 1
                elif what == "trouble":
                    told.troubles += 1
        told.claims.sort(key=lambda claim: claim.at)
        return told

    @property
    def takeovers(self) -> int:
        """How often a task was handed out on another host than before."""
        last: dict[str, str] = {}
        count = 0
        for claim in self.claims:
            count += last.get(claim.task, claim.host) != claim.host
            last[claim.task] = claim.host
        return count


def contradictions(told: Told, queue: Path) -> list[str]:
    """Return what is wrong when all work is done."""
    wrong = []
    witnesses: dict[str, dict[str, Any]] = {}
    for path in sorted((queue / "completed").rglob("*.json")):
        record = json.loads(path.read_bytes())
        if record["task_id"] in witnesses:
            wrong.append(f"{record['task_id']}: two witnesses")
        witnesses[record["task_id"]] = record
    wrong += [f"{task}: it was pushed, and was never completed" for task in sorted(told.pushed - witnesses.keys())]
    for task, count in Counter(task for task, _ in told.acks).items():
        if count > 1:
            wrong.append(f"{task}: {count} completions were accepted")
    for task, token in told.acks:
        witness = witnesses.get(task)
        if witness is None:
            wrong.append(f"{task}: its completion was accepted, and there is no witness of it")
        elif witness["token"] != token or witness["result"].get("token") != token:
            wrong.append(f"{task}: the completion of token {token} was accepted, the witness is of {witness['token']}")
    for task, token in told.refused:
        if task in witnesses and witnesses[task]["token"] == token:
            wrong.append(f"{task}: the completion of token {token} was refused, and the witness is of it")
    for (task, token), count in Counter((claim.task, claim.token) for claim in told.claims).items():
        if count > 1:
            wrong.append(f"{task}: handed out {count} times with token {token}")
    for folder in ("frontier", "failed"):
        for path in (queue / folder).rglob("*.json"):
            wrong.append(f"{path.relative_to(queue)} is left")
    return wrong


def verdicts(out: str, err: str, code: int) -> tuple[list[str], dict[str, Any]]:
    """Return what `dfq verify-fs --json` found wrong, and its figures."""
    rows = [json.loads(line) for line in out.splitlines()]
    by = Counter(row["outcome"] for row in rows)
    wrong = [f"verify-fs: {row['promise']}: {row['found']}" for row in rows if row["outcome"] == "broken"]
    if code != 0 and not wrong:
        wrong.append(f"verify-fs ended with status {code}: {err.strip()[-300:]}")
    weaker = ", ".join(row["promise"] for row in rows if row["outcome"] == "weaker")
    return wrong, {"verify-fs: promises kept": by["kept"], "verify-fs: weaker": f"{by['weaker']} ({weaker})"}
