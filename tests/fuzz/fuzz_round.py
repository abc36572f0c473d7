"""Whole queues with bad files in them: the good tasks beside these are done, every look works, and nothing is lost.

What may go: slots and a dead letter of a task that is over (they are swept with it), a dead letter of a task that is
not dead, the second of two files of one id, a link in retired/ that guards nothing, clock.json (a hint), the file of a
task that a worker completed, and what is past its retention.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner
from fuzz_oracle import Violation, need
from fuzz_strangers import KINDS, NAMES, Bad, damaged, looks, put

import dfq
from dfq.cli import main as command
from dfq.providers.filesystem import FilesystemQueue
from dfq.tree import Tree, plain, slot_name, task_name

SHARDS = 4
PATIENCE = 20.0  # seconds for the good tasks: a bad lease is judged after one
PROCESSES = 0.04  # the share of queues that `dfq work` works off as a process of its own, which takes a second
REPO = str(Path(__file__).resolve().parents[2])
BUCKET = "20200101T000000Z"
FOLDERS = [
    "", "frontier", "frontier/5", "frontier/5/{s}", "frontier/5/{s}", "frontier/5/{s}", "frontier/9/{s}",
    "frontier/x/{s}",
    "scheduled", f"scheduled/{BUCKET}", f"scheduled/{BUCKET}", "scheduled/junk", "active-leases", "active-leases/{s}",
    "active-leases/{s}", "active-leases/{s}", "completed", "completed/{s}", "completed/{s}", "failed",
    "failed/{s}", "retired",
    "retired/{s}", "salvage", "deep/er",
]  # fmt: skip
CONTENT = {
    "frontier": "task", "scheduled": "task on disk", "active-leases": "lease", "completed": "witness",
    "failed": "dead letter",
    "retired": "witness",
}  # fmt: skip
LOOKS = [
    ["status"], ["status", "--json"], ["status", "--by", ""], ["ls", "--limit", "0"], ["ls", "--json"], ["leases"],
    ["stalled", "--json"], ["show", "bad"], ["show", "--json", "bad"],
]  # fmt: skip


OLD = ("old file", "file from before all time")


@dataclass(slots=True)
class Rounds:
    """What was tried."""

    queues: int = 0
    bad_files: int = 0
    good_tasks: int = 0
    unavailable: int = 0  # polls that said so, and worked the next time
    processes: int = 0  # queues that `dfq work` worked off
    unproven: int = 0  # tasks that a witness which cannot be read has ended
    kinds: set[str] = field(default_factory=set)


class OwnedRound:
    """A queue that owns its frontier."""

    index = False

    def __init__(self, folder: Path, chance: random.Random, told: Rounds) -> None:
        self.root = folder / "root"
        self.top = self.root / "q"
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret.json").write_bytes(b'{"id": "bad", "payload": "secret"}')
        self.chance = chance
        self.told = told
        self.bad: list[Bad] = []
        self.good: set[str] = set()
        self.refused = False
        self.good_left: set[str] = set()
        self.tidied = chance.random() < 0.5
        self._queues: list[dfq.QueueManager] = []

    def settings(self) -> dict[str, Any]:
        return {"shards": SHARDS, "durability": "fast", "lease": 2, "max_attempts": 2}

    def open(self) -> FilesystemQueue:
        queue = dfq.open_queue("q", self.root, **self.settings())
        assert isinstance(queue, FilesystemQueue)
        self._queues.append(queue)
        return queue

    def close(self) -> None:
        for queue in self._queues:
            queue.close()

    def prepare(self) -> None:
        """Fill the queue with good tasks in every state, then with bad files."""
        queue = self.open()
        queue.push({}, id="done/0")
        (task,) = queue.poll()
        queue.ack(task)
        queue.push({}, id="dead/0")
        for _ in range(2):
            (task,) = queue.poll()
            queue.nack(task, error="on purpose")
        queue.push({}, id="cancelled/0")
        queue.cancel("cancelled/0")
        for n in range(3):
            self.good.add(queue.push({"n": n}, id=f"good/{n}", priority=9 if n == 2 else 5))
        self.good.add(queue.push({}, id="later/0", delay=0.01))
        queue.close()
        self._spoil()

    def _spoil(self) -> None:
        # A file in the place of a shard's folder keeps that shard from working, as it must: not one of a good task's.
        tree = Tree(SHARDS)
        taken = {tree.shard(task_id.replace("/", "%2F")) for task_id in [*self.good, "dead/0", "done/0"]}
        free = sorted({f"{n:x}" for n in range(SHARDS)} - taken)
        if self.chance.random() < 0.4:
            self._spoil_one(tree.shard("bad"))
        for _ in range(self.chance.randint(0 if self.bad else 1, 4)):
            name = self.chance.choice(NAMES)
            if name in ("00", "03") and free:
                name = self.chance.choice(free)
            key = name.partition("~")[0].removesuffix(".json").removesuffix(".lease")
            shard = tree.shard(key) if key.isascii() and self.chance.random() < 0.8 else self.chance.choice("0123")
            folder = self.chance.choice(FOLDERS).replace("{s}", shard)
            if name == "queue.json" and not folder:
                continue
            self._put(self.top / folder / name, CONTENT.get(folder.partition("/")[0], "lease"))
        if self.chance.random() < 0.2:
            self._put(self.top / "clock.json", "clock.json")

    def _spoil_one(self, shard: str) -> None:
        """Put bad files in several places of one task: what one says of it, another may deny."""
        places = [
            f"frontier/5/{shard}/bad.json",
            f"active-leases/{shard}/bad.lease",
            f"active-leases/{shard}/bad~2.lease",
        ]
        places += [f"{top}/{shard}/bad.json" for top in ("completed", "failed", "retired")]
        places += [f"scheduled/{BUCKET}/bad.json", f"completed/{shard}/bad~e1.json", f"frontier/7/{shard}/bad~e1.json"]
        for place in places:
            if self.chance.random() < 0.4:
                self._put(self.top / place, CONTENT[place.partition("/")[0]])

    def _put(self, path: Path, content: str) -> None:
        kind = "file" if self.chance.random() < 0.5 else self.chance.choice(sorted(KINDS))
        made = put(kind, path, damaged(content, self.chance), self.outside)
        if made is not None:
            self.bad.append(made)

    def run(self) -> None:
        """Work and look, as workers and people do."""
        queue = self.open()
        self.good_left = set(self.good)
        with self._closed_to_us():
            self._look(queue)
        # An interpreter may lie where only its owner may read it.
        if self.chance.random() < PROCESSES and os.geteuid() == os.getuid():
            self._work_as_a_process()
        self._work(queue)
        with self._closed_to_us():
            self._look(queue)
        if self.tidied:
            self._tidy(queue)
        for repair in (False, True):
            found = list(queue.fsck(repair=repair, settle=0)) if not self.index else []
            need(all(f.code and f.found and f.fix for f in found), "a finding that says nothing")
        for task_id in self.good:
            need(queue.get(task_id).state == "completed", f"{task_id} is {queue.get(task_id).state} after the repair")
        self._commands()

    @contextlib.contextmanager
    def _closed_to_us(self) -> Iterator[None]:
        """A count that leaves out a folder which may not be read would be wrong: then it says so, and which one."""
        try:
            yield
        except dfq.QueueUnavailable as e:
            closed = [bad for bad in self.bad if bad.kind == "folder of mode 000" and str(bad.path) in str(e)]
            need(closed and os.geteuid() != 0, f"no reason to refuse: {e}")
            self.refused = True

    def _tidy(self, queue: FilesystemQueue) -> None:
        """Clear up as a worker does once a minute, on a machine whose clock has been right for long."""
        with mock.patch.object(queue._housekeeping, "_steadiness", mock.Mock(seconds=lambda: 1e9)):
            while True:
                queue._housekeeping._last = None  # a minute has passed
                queue._housekeeping.tidy()
                if not queue._housekeeping._left:
                    break

    def untouchable(self) -> dict[Path, str]:
        """Return what nobody may change."""
        return {path: looks(path) for path in (self.outside, self.outside / "secret.json")}

    def check_kept(self) -> None:
        """Nothing bad was lost, unless it may."""
        for bad in self.bad:
            if not bad.still_there():
                self._check_kept(bad)

    def _work_as_a_process(self) -> None:
        argv = [sys.executable, "-m", "dfq", "work", "--exec", "true", "--drain", "--lease", "2"]
        env = os.environ | {"DFQ_ROOT": str(self.root), "DFQ_QUEUE": "q", "PYTHONPATH": REPO, **self.more_env()}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", timeout=50, check=False)
        need("Traceback" not in done.stderr, f"dfq work: {done.stderr[-800:]}")
        need(done.returncode in (0, 1), f"dfq work ended with {done.returncode}: {done.stderr[-800:]}")
        with dfq.open_queue("q", self.root, **self.settings()) as queue:
            left = [task_id for task_id in self.good if queue.get(task_id).state != "completed"]
        need(not left, f"dfq work left {left}: {done.stderr[-800:]}")
        self.told.processes += 1
        self.good_left.clear()

    def _work(self, queue: FilesystemQueue) -> None:
        left, end = self.good_left, time.monotonic() + PATIENCE
        while left:
            need(time.monotonic() < end, f"the good tasks {sorted(left)} are not handed out")
            try:
                for task in queue.poll(10, wait=0.05):
                    if task.id in left:
                        queue.ack(task, {"by": "fuzz"})
                        left.discard(task.id)
                        continue
                    with contextlib.suppress(dfq.LeaseLost):  # a slot above ours was there before us
                        if self.chance.random() < 0.5:
                            queue.ack(task)
                        else:
                            queue.nack(task, error="not one of ours")
            except dfq.QueueUnavailable:
                self.told.unavailable += 1

    def _look(self, queue: FilesystemQueue) -> None:
        counts = queue.counts()
        listed = {info.id for info in queue.tasks()}
        need(self.good <= listed, f"{sorted(self.good - listed)} are not listed")
        need(counts.completed + counts.pending + counts.scheduled >= len(self.good), f"{counts}")
        need(self.good <= {found.id for found in queue.states()}, "not among the states")
        for task_id in self.good:
            queue.get(task_id)
        with contextlib.suppress(dfq.TaskNotFound):
            queue.get("bad")

    def _commands(self) -> None:
        runner = CliRunner()
        env = {"DFQ_ROOT": str(self.root), "DFQ_QUEUE": "q", **self.more_env()}
        looks_ = [*LOOKS, ["show", sorted(self.good)[0]]]
        if self.chance.random() < 0.1 and not self.index:
            looks_ += [["fsck", "--json"], ["fsck", "--repair"]]  # they wait a second before they believe what they see
        for args in looks_:
            done = runner.invoke(command, args, env=env)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise Violation(f"dfq {' '.join(args)}: a traceback") from done.exception
            may_fail = args[0] in ("fsck", "stalled") or args[-1] == "bad"
            if self.refused and done.exit_code == 1:
                continue
            need(
                done.exit_code == 0 or may_fail,
                f"dfq {' '.join(args)} ended with {done.exit_code}: {done.output[-300:]}",
            )
            if "--json" in args:
                for line in done.stdout.splitlines():
                    json.loads(line, parse_constant=_no_constant)
            if args[0] == "ls":
                need(sum(task_id in done.output for task_id in self.good) == len(self.good), "dfq ls leaves some out")

    def more_env(self) -> dict[str, str]:
        return {}

    def _check_kept(self, bad: Bad) -> None:
        for path in self.top.rglob("*"):
            if looks(path) == bad.looks:
                return  # moved, as from the schedule to the frontier
        folder, name = bad.path.relative_to(self.top).parts[0], bad.path.name
        slot = slot_name(name)
        key = slot[0] if slot else task_name(name)
        may_go = folder in ("retired", "clock.json") or (key is not None and self._may_go(folder, key, bad))
        need(may_go, f"lost: {bad.told(self.top)} is now {looks(bad.path)}")

    def _may_go(self, folder: str, key: str, bad: Bad) -> bool:
        """Tell whether what was in the place of a task's file may have gone with that task."""
        tree = Tree(SHARDS)
        ended = [self.top / place for place in (tree.completed(key), tree.completed(plain(key)))]
        proofs = [other for other in self.bad if other.path in ended and other.path != bad.path]
        if folder not in ("frontier", "scheduled"):  # the file of a dead task stays, whatever its letter says
            ended.append(self.top / tree.failed(key))
        if any(path.is_file() for path in ended if path != bad.path) or proofs:
            self.told.unproven += bool(proofs)
            return True  # it is over, or dead, and its letter says why
        waiting = [
            p for p in self.top.glob("frontier/*/*/*") if p.name == f"{key}.json" and stat.S_ISREG(p.lstat().st_mode)
        ]
        if folder == "active-leases":
            return not waiting or bad.kind.startswith("link")
        if folder == "failed" and (waiting or _is_letter(bad.path)):
            return True  # a view: of a task that is not dead, or whose own letter took the name
        if folder == "scheduled" and any("payload" in _record(path) for path in waiting):
            return True  # the same id twice is one task
        return self.tidied and bad.kind in OLD and folder in ("completed", "failed")  # past its retention


def _is_letter(path: Path) -> bool:
    return _record(path).get("state") == "dead"


def _record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; nothing if there is none."""
    try:
        found = json.loads(path.read_bytes()[: 1024 * 1024])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _no_constant(name: str) -> None:
    raise Violation(f"--json prints {name}, which is no JSON")
