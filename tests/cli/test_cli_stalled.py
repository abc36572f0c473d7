"""dfq stalled: which leases show no life, and why. Workers are real processes that are really killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_kit import Ran, Run, environment, eventually

from dfq.codec import iso
from dfq.lease import LEASE_BYTES
from dfq.ports import Machine, SystemClock

HOLD = """
import sys, time, dfq
queue = dfq.open_queue("default", lease=float(sys.argv[1]))
[task] = queue.poll(wait=20)
print(task.id, flush=True)
time.sleep(600)
"""
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def hold(root: Path, dfq: Run) -> Iterator[Hold]:
    """Push a task and start a worker that claims it and never ends."""
    started: list[subprocess.Popen[str]] = []

    def start(task_id: str = "a", lease: float = 600) -> subprocess.Popen[str]:
        dfq("push", "x", "--id", task_id)
        command = [sys.executable, "-c", HOLD, str(lease)]
        process = subprocess.Popen(command, env=environment(root), stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == f"{task_id}\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(30)
        if process.stdout:
            process.stdout.close()


def lease_file(root: Path) -> Path:
    (found,) = (root / "default" / "active-leases").glob("*/*.lease")
    return found


def rewrite(root: Path, **fields: Any) -> None:
    """Change what a lease says, in place: whoever holds its lock keeps it."""
    path = lease_file(root)
    record = {k: v for k, v in (json.loads(path.read_bytes()) | fields).items() if v is not None}
    with path.open("r+b") as file:
        file.write(json.dumps(record).encode().ljust(LEASE_BYTES - 1) + b"\n")


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def only_stalled(ran: Ran) -> dict[str, Any]:
    assert ran.status == 0, ran.err
    return ran.object


def elapsed() -> float:
    return SystemClock().elapsed()


def test_the_lease_of_a_live_worker_is_not_stalled(dfq: Run, hold: Hold) -> None:
    hold()
    ran = dfq("stalled")
    assert (ran.status, ran.out, ran.err) == (3, "", "dfq: nothing is stalled\n")
    assert dfq("stalled", "--json").status == 3
    lease = dfq("leases", "--json").object
    assert (lease["stalled"], lease["silent_since"], lease["outlook"]) == (None, None, None)
    assert lease["host"] == os.uname().nodename
    assert dfq("leases").lines[0].split("\t")[6] == "-"


def test_a_killed_worker_is_seen_at_once_and_its_task_is_taken_over_as_foretold(
    dfq: Run, dfq_tty: Run, hold: Hold, root: Path
) -> None:
    worker = hold("29.5/-98.5/dentist.csv")
    worker.kill()
    worker.wait(30)
    before = everything(root)
    found = only_stalled(dfq("stalled", "--json"))
    assert (found["id"], found["stalled"], found["attempt"]) == ("29.5/-98.5/dentist.csv", "holder dead", 1)
    assert found["outlook"] == "taken over at the next poll"
    assert found["expires_in"] > 500, "it did not have to wait for the lease to run out"
    (line,) = dfq("stalled").lines
    assert line.split("\t") == [
        "29.5/-98.5/dentist.csv",
        found["worker_id"],
        os.uname().nodename,
        "1",
        found["silent_since"],
        "holder dead",
        "taken over at the next poll",
    ]
    assert "silent since" in dfq_tty("stalled").out
    assert "holder dead" in dfq_tty("leases").out
    assert "holder dead" in dfq("show", "29.5/-98.5/dentist.csv").out
    assert dfq("status", "--json").object["stalled"] == 1
    assert dfq("status", "--by", "").lines == ["29.5/\t0\t0\t1\t0\t0\t0"]
    assert everything(root) == before, "looking changed something"
    assert dfq("claim").object["attempt"] == 2
    assert dfq("stalled").status == 3
    assert dfq("status", "--by", "").lines == ["29.5/\t0\t1\t0\t0\t0\t0"]


def test_a_worker_that_used_up_the_attempts_leaves_a_dead_letter(dfq: Run, hold: Hold) -> None:
    worker = hold()
    worker.kill()
    worker.wait(30)
    found = only_stalled(dfq("stalled", "--json", DFQ_MAX_ATTEMPTS="1"))
    assert found["outlook"] == "a dead letter at the next poll"
    assert dfq("claim", DFQ_MAX_ATTEMPTS="1").status == 3
    assert dfq("show", "a", "--json").object["state"] == "failed"


def test_a_stopped_worker_is_stalled_once_its_lease_is_over(dfq: Run, hold: Hold) -> None:
    worker = hold(lease=1.5)
    worker.send_signal(signal.SIGSTOP)
    found = eventually(lambda: [o for o in dfq("stalled", "--json").objects if o["stalled"] == "expired"])[0]
    assert found["outlook"] == "taken over at the next poll"
    assert dfq("claim").object["attempt"] == 2


def test_a_stopped_worker_is_stalled_before_its_lease_is_over(dfq: Run, hold: Hold, root: Path) -> None:
    worker = hold(lease=600)
    worker.send_signal(signal.SIGSTOP)
    assert dfq("stalled").status == 3
    rewrite(root, deadline_boottime=elapsed() + 240)  # 0.6 of its time ago
    assert dfq("stalled").status == 3
    rewrite(root, deadline_boottime=elapsed() + 100)  # over 0.8 ago
    found = only_stalled(dfq("stalled", "--json"))
    assert found["stalled"] == "no heartbeat"
    assert found["outlook"].startswith("taken over in ")
    assert dfq("claim").status == 3, "it is stalled, not stale: nobody may take it yet"


def test_a_lease_of_a_shell_script_is_not_stalled_until_it_has_run_out(dfq: Run, root: Path) -> None:
    dfq("push", "x", "--id", "a")
    dfq("claim", "--lease", "600")
    rewrite(root, deadline_boottime=elapsed() + 20)
    assert dfq("stalled").status == 3, "nobody promised to renew it"
    rewrite(root, deadline_boottime=elapsed() - 1)
    assert only_stalled(dfq("stalled", "--json"))["stalled"] == "expired"


@pytest.mark.parametrize("content", [b"", b"\0" * 1024, b'{"task_id": "a", "sta'])
def test_a_lease_that_cannot_be_read_is_stalled(dfq: Run, hold: Hold, root: Path, content: bytes) -> None:
    worker = hold()
    path = lease_file(root)
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)
    os.utime(path, (time.time() - 60, time.time() - 60))
    found = only_stalled(dfq("stalled", "--json"))
    assert (found["id"], found["stalled"], found["worker_id"]) == ("a", "unreadable", None)
    assert found["outlook"] == "taken over within 900 s if it stays so", "its lock is held"
    worker.kill()
    worker.wait(30)
    found = only_stalled(dfq("stalled", "--json"))
    assert found["outlook"] == "taken over within 1 s if it stays so"
    assert dfq("stalled").lines[0].split("\t")[1:3] == ["-", "-"]


def test_the_lease_of_another_machine_goes_by_its_time_stamps(dfq: Run, root: Path) -> None:
    dfq("push", "x", "--id", "a")
    dfq("claim", "--lease", "600")
    now = time.time()
    stamps = {"host": "pi9", "boot_id": "another", "worker_id": "pi9-1-abcdef", "liveness": "lock", "ttl_s": 60}
    rewrite(root, **stamps, heartbeat_timestamp=iso(now), expiry_timestamp=iso(now + 60))
    assert dfq("stalled").status == 3

    rewrite(root, heartbeat_timestamp=iso(now - 50), expiry_timestamp=iso(now + 3600))
    found = only_stalled(dfq("stalled", "--json"))
    assert (found["host"], found["worker_id"], found["stalled"]) == ("pi9", "pi9-1-abcdef", "no heartbeat")
    assert found["silent_since"] == iso(now - 50)

    rewrite(root, expiry_timestamp=iso(now - 1))
    found = only_stalled(dfq("stalled", "--json"))
    assert found["stalled"] == "expired"
    assert found["outlook"] == "taken over within 60 s if it stays silent (by the clock of pi9)"
    assert dfq("claim").status == 3, "no clock of another machine decides who has a task"


def test_a_lease_from_before_this_machine_was_started_is_of_another_boot(dfq: Run, hold: Hold, root: Path) -> None:
    hold()
    rewrite(root, boot_id="the-boot-before")
    found = only_stalled(dfq("stalled", "--json"))
    assert (found["stalled"], found["outlook"]) == ("other boot", "taken over at the next poll")
    assert dfq("claim").object["attempt"] == 2


def test_a_paused_queue_says_that_nothing_is_taken_over(dfq: Run, hold: Hold) -> None:
    worker = hold()
    worker.kill()
    worker.wait(30)
    dfq("pause")
    ran = dfq("stalled")
    assert (ran.status, len(ran.lines)) == (0, 1)
    assert "dfq resume" in ran.err


def test_a_lease_with_odd_fields_is_shown_and_does_no_harm(dfq: Run, root: Path) -> None:
    dfq("push", "x", "--id", "a")
    dfq("claim")
    odd = {"host": ["x"], "boot_id": {}, "worker_id": "\x1b[31m", "heartbeat_timestamp": 9e11, "attempt": "many"}
    rewrite(root, **odd, expiry_timestamp="1999-01-01T00:00:00Z", liveness=7)
    found = only_stalled(dfq("stalled", "--json"))
    assert (found["stalled"], found["host"], found["worker_id"]) == ("expired", None, "\x1b[31m")
    assert "\x1b" not in dfq("stalled").out
    assert Machine.this().host not in dfq("stalled").out
