"""fsck on every state that crashes, races and power cuts leave: no false alarm, and its repairs keep every promise.

At the end of each run fsck repairs, finds nothing more to repair, and clears up instead of a queue's own housekeeping.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from explore import Violation, Weather, explore, wander
from scenarios import DEAD, LONG, POWER, RETIRED, TWO, WHOLE
from test_protocol import ids, report
from workers import Scenario

from dfq.slotlog import SlotLog
from dfq.tree import Entry

BESIDE = [
    Scenario("fsck and an ack", ("claim ack", "fsck")),
    Scenario("fsck and a burial", ("claim nack", "fsck"), max_attempts=1),
    Scenario("fsck and a redrive", ("redrive", "fsck"), before=DEAD, max_attempts=1),
    Scenario("fsck and a second death", ("redrive claim nack", "fsck"), before=DEAD, max_attempts=1),
    Scenario("fsck and a cancel", ("cancel", "fsck"), before=DEAD, max_attempts=1),
]
#: At random, with others at every call, so that fsck meets all that they do half.
CROWD = [
    Scenario("fsck among workers", ("claim nack claim ack", "claim give claim ack", "fsck fsck"), max_attempts=2),
    Scenario("fsck among redrives", ("redrive claim nack redrive", "claim nack", "fsck fsck"), DEAD, max_attempts=1),
    Scenario("fsck among epochs", ("rerun claim ack rerun", "claim ack cancel push", "fsck fsck"), epochs=True),
]


@pytest.mark.parametrize("scenario", [*TWO, *RETIRED[:5]], ids=ids)
def test_what_a_crash_leaves_is_repaired(scenario: Scenario) -> None:
    report(scenario, explore(replace(scenario, fsck=True, fsck_at_end=True), preemptions=1, crashes=1))


@pytest.mark.parametrize("scenario", [*TWO, WHOLE[0], *RETIRED[:5]], ids=ids)
def test_what_workers_and_their_housekeeping_leave_is_clean(scenario: Scenario) -> None:
    report(scenario, explore(replace(scenario, fsck_at_end=True), preemptions=1, crashes=1))


@pytest.mark.parametrize("scenario", LONG, ids=ids)
def test_what_many_leave_at_random_is_repaired(scenario: Scenario) -> None:
    report(scenario, wander(replace(scenario, fsck=True, fsck_at_end=True), range(150), Weather(crashes=2)))


@pytest.mark.parametrize("scenario", POWER, ids=ids)
def test_what_a_power_cut_leaves_is_repaired(scenario: Scenario) -> None:
    report(scenario, wander(replace(scenario, fsck=True), range(40), Weather(crashes=1, cuts=0.5)))


@pytest.mark.parametrize("scenario", BESIDE, ids=ids)
def test_a_repair_beside_a_worker_under_every_schedule_with_two_preemptions(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=2, crashes=0))


def test_two_repairs_at_once_beside_a_worker() -> None:
    scenario = Scenario("fsck twice", ("claim ack", "fsck", "fsck"))
    report(scenario, explore(scenario, preemptions=1, crashes=1))


@pytest.mark.parametrize("scenario", CROWD, ids=ids)
def test_a_repair_in_a_crowd(scenario: Scenario) -> None:
    report(scenario, wander(scenario, range(150), Weather(crashes=2)))


class Hasty(SlotLog):
    """A repair that removes the task without a look at its witness."""

    def mend(self, entry: Entry) -> None:
        self._store.remove(entry.path)
        self.sweep_slots(entry.name, entry.witness)


class Forgetful(SlotLog):
    """A repair that leaves what it should have put right."""

    def mend(self, entry: Entry) -> None:
        pass


def test_a_repair_that_does_not_look_at_the_witness_is_caught() -> None:
    with pytest.raises(Violation, match="is lost"):
        explore(Scenario("hasty", ("claim ack", "claim ack"), log=Hasty, fsck=True), preemptions=1, crashes=1)


def test_a_hasty_repair_beside_a_worker_is_caught() -> None:
    with pytest.raises(Violation, match="is lost"):
        explore(Scenario("hasty", ("claim ack", "fsck"), log=Hasty), preemptions=1, crashes=1)


def test_a_repair_that_does_nothing_is_caught() -> None:
    with pytest.raises(Violation, match="fsck left"):
        explore(Scenario("forgetful", ("claim ack", "claim ack"), log=Forgetful, fsck=True), preemptions=1, crashes=1)
