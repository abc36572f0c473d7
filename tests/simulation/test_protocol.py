"""The lease protocol under every schedule within a bound, under random ones, and under power cuts.

The code that runs is dfq's own: SlotLog, DiskStore, Intake, Judge and Housekeeping over a simulated disk.
"""

from __future__ import annotations

import pytest
from explore import Tally, Weather, explore, wander
from workers import Scenario

from dfq.staleness import Judge

DEAD = "push claim nack"  # with one attempt, this leaves a dead letter

TWO = [
    Scenario("two workers", ("claim beat ack", "claim ack")),
    Scenario("one gives up", ("claim nack", "claim ack"), max_attempts=1),
    Scenario("one gives back", ("claim give", "claim ack"), max_attempts=1),
    Scenario("both give up", ("claim nack", "claim nack"), max_attempts=2),
    Scenario("cancelled at work", ("claim ack", "cancel")),
    Scenario("cancelled twice", ("cancel", "cancel")),
    Scenario("pushed again", ("push", "claim ack")),
    Scenario("redriven twice", ("redrive", "redrive claim ack"), before=DEAD, max_attempts=1),
    Scenario("dead and cancelled", ("redrive claim ack", "cancel"), before=DEAD, max_attempts=1),
    Scenario("dead again", ("redrive claim nack", "claim"), before=DEAD, max_attempts=1),
    Scenario("keeping nothing", ("claim ackd", "claim ackd")),
    Scenario("expired or put back", ("expire", "redrive claim ack"), before=DEAD, max_attempts=1),
    Scenario("expired or cancelled", ("expire", "cancel"), before=DEAD, max_attempts=1),
    Scenario("put back", ("claim ack", "rerun claim ack"), epochs=True),
    Scenario("put back by two", ("rerun claim ack", "rerun claim ack"), before="push claim ack", epochs=True),
    Scenario("cancelled and pushed", ("claim ack", "cancel push claim ack"), epochs=True),
    Scenario("due and cancelled", ("promote claim ack", "withdraw"), before="schedule"),
]
THREE = [
    Scenario("three workers", ("claim ack", "claim ack", "claim ack")),
    Scenario("two workers, one cancels", ("claim ack", "claim nack", "cancel"), max_attempts=1),
    Scenario(
        "dead, helped, redriven, cancelled", ("claim", "redrive claim ack", "cancel"), before=DEAD, max_attempts=1
    ),
]
MANY = [
    Scenario(
        "anything", ("claim nack claim beat ack", "claim give claim ack", "claim beat nack", "cancel"), max_attempts=2
    ),
    Scenario("dead and back", ("redrive claim nack redrive", "claim nack", "redrive claim ack"), DEAD, max_attempts=1),
    Scenario("pushes", ("push claim ack", "push", "claim ack claim ack", "cancel"), before="", epochs=True),
    Scenario(
        "epochs",
        ("rerun claim ack rerun claim ack", "claim ack claim nack claim ack", "rerun cancel rerun"),
        epochs=True,
    ),
]
POWER = [
    Scenario("scheduled", ("promote claim ack", "withdraw", "promote claim ack"), before="schedule", durable=True),
    Scenario("push to ack", ("push claim ack", "claim ack", "claim beat nack"), before="", durable=True),
    Scenario("a helper", ("claim ack", "claim ack", "claim"), durable=True),
    Scenario("cancel", ("push", "claim ack", "cancel"), before="", durable=True),
    Scenario("epochs", ("rerun claim ack", "claim ack", "cancel push claim"), durable=True, epochs=True),
    Scenario("dead", ("claim nack redrive claim ack", "redrive claim nack", "claim"), max_attempts=1, durable=True),
]


#: A cut may leave a lease above a gap here, which only the next retry fills: not clean, and no harm.
POWER_AND_GAPS = [
    *POWER,
    Scenario("expiry", ("expire", "redrive claim ackd", "claim"), before=DEAD, max_attempts=1, durable=True),
]


def ids(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("scenario", TWO, ids=ids)
def test_two_processes_under_every_schedule_with_two_preemptions_and_a_crash(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=2, crashes=1))


@pytest.mark.parametrize("scenario", TWO[:2], ids=ids)
def test_two_workers_under_every_schedule_with_three_preemptions_and_no_crash(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=3, crashes=0))


@pytest.mark.parametrize("scenario", THREE[:2], ids=ids)
def test_three_processes_under_every_schedule_with_two_preemptions(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=2, crashes=0))


@pytest.mark.parametrize("scenario", THREE, ids=ids)
def test_three_processes_under_every_schedule_with_a_preemption_and_a_crash(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=1, crashes=1))


@pytest.mark.parametrize("scenario", MANY, ids=ids)
def test_many_processes_at_random(scenario: Scenario) -> None:
    report(scenario, wander(scenario, range(500), Weather(crashes=2)))


@pytest.mark.parametrize("scenario", POWER_AND_GAPS, ids=ids)
def test_nothing_that_returned_is_undone_by_a_power_cut(scenario: Scenario) -> None:
    report(scenario, wander(scenario, range(250), Weather(crashes=1, cuts=0.7)))


def test_a_process_that_lives_keeps_its_task_and_a_dead_one_loses_it_at_once() -> None:
    scenario = Scenario("patience", ("claim beat ack", "claim nack", "claim ack"), judge=Judge)
    report(scenario, explore(scenario, preemptions=2, crashes=0))
    report(scenario, wander(scenario, range(300), Weather(crashes=1)))


def test_a_run_replays_step_by_step() -> None:
    choices = [0] * 5 + [1] + [0] * 8
    first, second = (replay(TWO[0], choices) for _ in range(2))
    assert first == second
    assert first[0].split() == ["A", "look", "completed/0", "->", "None"]
    assert any(line.split()[0] == "B" for line in first)


def report(scenario: Scenario, tally: Tally) -> None:
    assert tally.complete
    print(f"{scenario.name}: {tally.runs:,} schedules, {tally.states:,} states, {tally.images:,} power cuts")
