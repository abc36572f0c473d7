"""What is said of a lease agrees with what will be done about it."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dfq
from dfq.codec import iso
from dfq.lease import lease_bytes, parse
from dfq.ports import Machine, OsDisk
from dfq.staleness import Judge
from dfq.stalled import Pulse, Stall
from dfq.stores.disk import DiskStore

HERE = Machine("pi", "this-boot", 1, "pi-1-abcdef")
START = 1_700_000_000.0
LEASE = 60.0


@dataclass
class Clock:
    """Two clocks that are set by hand."""

    now: float = 1000.0

    def wall(self) -> float:
        return START + self.now

    def elapsed(self) -> float:
        return self.now


class Bench:
    """A lease on a disk, and those who look at it."""

    def __init__(self, folder: Path, *, local: bool = True, timeout: float | None = None) -> None:
        self.path = folder / "a.lease"
        self.clock = Clock()
        store = DiskStore(OsDisk(str(folder), local=local), durable=False)
        self.judge = Judge(store, self.clock, HERE, lease=LEASE, heartbeat_timeout=timeout)
        self.pulse = Pulse(store, self.judge, self.clock, HERE, lease=LEASE, heartbeat_timeout=timeout, max_attempts=5)

    def write(self, raw: bytes, age: float = 0.0) -> None:
        self.path.write_bytes(raw)
        at = self.clock.wall() - age
        os.utime(self.path, (at, at))

    def feel(self) -> Stall | None:
        return self.pulse.feel(self._slot(), "a.lease")

    def may_be_taken(self) -> bool:
        return self.judge.held_until(self._slot(), "a.lease") is None

    def _slot(self) -> Any:
        return parse("a", 1, self.path.read_bytes())


def record(clock: Clock, *, age: float = 0.0, ttl: float = LEASE, **fields: Any) -> dict[str, Any]:
    """Return a lease that was renewed `age` seconds ago."""
    lease = {
        "task_id": "a",
        "host": HERE.host,
        "boot_id": HERE.boot_id,
        "liveness": "ttl",
        "attempt": 1,
        "heartbeat_timestamp": iso(clock.wall() - age),
        "expiry_timestamp": iso(clock.wall() - age + ttl),
        "ttl_s": ttl,
        "deadline_boottime": clock.elapsed() - age + ttl,
        **fields,
    }
    return {key: value for key, value in lease.items() if value is not None}


WHO = {
    "here": {},
    "locked here": {"liveness": "lock"},
    "before": {"boot_id": "boot-before"},
    "elsewhere": {"boot_id": "other", "host": "pi9", "liveness": "lock"},
    "elsewhere, by time": {"boot_id": "other", "host": "pi9"},
    "of another tool": {"boot_id": None, "ttl_s": None, "deadline_boottime": None, "host": None, "liveness": None},
    "of nobody": dict.fromkeys(("boot_id", "ttl_s", "deadline_boottime", "host", "expiry_timestamp", "liveness")),
    "with no deadline": {"deadline_boottime": None},
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("timeout", [None, 30.0])
def test_whatever_may_be_taken_over_is_stalled(tmp_path: Path, who: str, local: bool, timeout: float | None) -> None:
    bench = Bench(tmp_path, local=local, timeout=timeout)
    for age, later in itertools.product((0.0, 20.0, 35.0, 50.0, 59.9, 60.0, 61.0, 5000.0), (0.0, 0.5, 61.0)):
        bench.write(lease_bytes({"state": "leased", "host": "", **record(bench.clock, age=age, **WHO[who])}), age)
        bench.feel()
        bench.clock.now += later
        if bench.may_be_taken():
            stall = bench.feel()
            assert stall is not None, (age, later)
            assert stall.outlook == "taken over at the next poll"


def test_a_lease_is_stalled_when_its_worker_would_give_it_up_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path, local=False)
    for age, why in ((0, None), (47, None), (49, "no heartbeat"), (59, "no heartbeat"), (60, "expired")):
        for who in ("locked here", "elsewhere"):
            bench.write(lease_bytes(record(bench.clock, age=age, **WHO[who])))
            stall = bench.feel()
            assert (stall.why if stall else None) == why, (who, age)


def test_a_claim_that_is_being_written_is_not_stalled(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(b"", age=0.5)
    assert bench.feel() is None
    bench.write(b"", age=2.0)
    stall = bench.feel()
    assert stall is not None
    assert (stall.why, stall.since) == ("unreadable", iso(bench.clock.wall() - 2.0))
    bench.write(b"", age=-3600.0)  # of a time to come: that is no claim of this moment
    assert bench.feel() is not None


def test_the_clock_of_another_machine_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.write(lease_bytes(record(bench.clock, age=70, **WHO["elsewhere"])))
    stall = bench.feel()
    assert stall is not None
    assert stall.outlook == "taken over within 60 s if it stays silent (by the clock of pi9)"
    bench.clock.now += 45
    stall = bench.feel()
    assert stall is not None
    assert "within 15 s" in stall.outlook, "it has been watched meanwhile"


def test_a_lease_that_is_given_back_while_one_looks_is_not_stalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feel = Pulse.feel
    with dfq.open_queue("q", tmp_path) as worker, dfq.open_queue("q", tmp_path) as looker:
        worker.push({}, id="a")
        [task] = worker.poll()

        def give_back_first(self: Pulse, *args: Any) -> Stall | None:
            worker.nack(task, delay=600)  # after the lease was read, before its lock is tried
            return feel(self, *args)

        monkeypatch.setattr(Pulse, "feel", give_back_first)
        assert looker.get("a").stalled is None
        assert looker.get("a").state == "scheduled"
