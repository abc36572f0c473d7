"""What a lease file says, read back."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dfq.lease import Slot, lease_bytes, lease_record, parse, released, renewed
from dfq.ports import Machine

MACHINE = Machine("pi", "a-boot", 1, "pi-1-abcdef")
TIMES = st.floats(0, 1e9)
SPANS = st.floats(0.05, 1e6)


@dataclass
class Stopped:
    """A clock that stands still."""

    now: float

    def wall(self) -> float:
        return 1.7e9

    def elapsed(self) -> float:
        return self.now


def read_back(record: dict[str, object]) -> Slot:
    return parse("t", 1, lease_bytes(record))


def new(now: float, ttl: float) -> dict[str, object]:
    return lease_record(
        "t",
        generation=1,
        attempt=1,
        token=1,
        nonce="n",
        ttl=ttl,
        liveness="lock",
        machine=MACHINE,
        clock=Stopped(now),
    )


@given(now=TIMES, ttl=SPANS)
def test_a_lease_is_never_read_back_as_longer_than_it_is(now: float, ttl: float) -> None:
    for record in (new(now, ttl), renewed(new(now, 1.0), ttl, Stopped(now))):
        deadline = read_back(record).deadline
        assert deadline is not None
        assert now + ttl - 0.002 <= deadline <= now + ttl


@given(now=TIMES, delay=SPANS)
def test_a_delay_is_never_read_back_as_shorter_than_it_is(now: float, delay: float) -> None:
    record = released(new(now, 1.0), attempt=1, delay=delay, error=None, machine=MACHINE, clock=Stopped(now))
    deadline = read_back(record).deadline
    assert deadline is not None
    assert now + delay <= deadline <= now + delay + 0.002
