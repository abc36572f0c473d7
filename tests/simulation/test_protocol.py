"""The lease protocol under every schedule within a bound, under random ones, under faults and under power cuts.

The code that runs is dfq's own, over a simulated disk and clock: the slot log, the provider with its scanner, intake,
schedule and housekeeping, and the way in which a worker settles tasks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from explore import Tally, Weather, explore, wander
from scenarios import LONG, MANY, PATIENT, POWER_AND_GAPS, RETIRED, THREE, TWO, WHOLE
from shrink import play
from workers import Scenario


def ids(scenario: Scenario) -> str:
    return scenario.name


@pytest.mark.parametrize("scenario", TWO, ids=ids)
def test_two_processes_under_every_schedule_with_two_preemptions_and_a_crash(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=2, crashes=1))


@pytest.mark.parametrize("scenario", [*WHOLE[:3], WHOLE[-1], *RETIRED], ids=ids)
def test_two_processes_with_a_whole_queue_and_with_time_that_passes(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=1, crashes=1))


@pytest.mark.parametrize("scenario", [RETIRED[0], RETIRED[1], RETIRED[3]], ids=ids)
def test_what_is_forgotten_under_every_schedule_with_two_preemptions(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=2, crashes=0))


@pytest.mark.parametrize("scenario", TWO[:2], ids=ids)
def test_two_workers_under_every_schedule_with_three_preemptions_and_no_crash(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=3, crashes=0))


@pytest.mark.parametrize("scenario", THREE[:2], ids=ids)
def test_three_processes_under_every_schedule_with_two_preemptions(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=2, crashes=0))


@pytest.mark.parametrize("scenario", THREE, ids=ids)
def test_three_processes_under_every_schedule_with_a_preemption_and_a_crash(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=1, crashes=1))


@pytest.mark.parametrize("scenario", LONG, ids=ids)
def test_many_processes_at_random(scenario: Scenario) -> None:
    report(scenario, wander(scenario, range(400), Weather(crashes=2)))


@pytest.mark.parametrize("scenario", [*MANY, *WHOLE, *RETIRED], ids=ids)
def test_calls_that_fail_replies_that_are_lost_listings_that_lag_and_clocks_that_jump(scenario: Scenario) -> None:
    weather = Weather(crashes=1, errors=0.08, lags=0.1, jumps=0.05, passes=0.05)
    report(scenario, wander(replace(scenario, faulty=True), range(150), weather))


@pytest.mark.parametrize("scenario", POWER_AND_GAPS, ids=ids)
def test_nothing_that_returned_is_undone_by_a_power_cut(scenario: Scenario) -> None:
    report(scenario, wander(scenario, range(120), Weather(crashes=1, cuts=0.5)))


@pytest.mark.parametrize("scenario", POWER_AND_GAPS, ids=ids)
def test_nothing_that_returned_is_undone_by_a_power_cut_after_calls_have_failed(scenario: Scenario) -> None:
    report(scenario, wander(replace(scenario, faulty=True), range(80), Weather(cuts=0.4, errors=0.1)))


@pytest.mark.parametrize("scenario", PATIENT, ids=ids)
def test_a_process_that_lives_keeps_its_task_and_a_dead_one_loses_it_at_once(scenario: Scenario) -> None:
    report(scenario, explore(scenario, preemptions=2 if len(scenario.scripts) < 3 else 1, crashes=0))
    report(scenario, wander(scenario, range(300), Weather(crashes=1, jumps=0.2, passes=0.1)))


def test_a_run_replays_step_by_step() -> None:
    moves = [("go", "A", 5), ("go", "B", 3), ("crash", "A")]
    first, second = (play(TWO[0], moves, every_call=False, traced=True).trace_lines() for _ in range(2))
    assert first == second
    assert first[0].split() == ["A", "look", "completed/0", "->", "None"]
    assert any(line.split()[0] == "B" for line in first)
    assert any("CRASHES" in line for line in first)


def report(scenario: Scenario, tally: Tally) -> None:
    assert tally.complete
    assert tally.runs > 0
    print(
        f"{scenario.name}: {tally.runs:,} schedules, {tally.states:,} states, "
        f"{tally.images:,} power cuts, {tally.faults:,} faults"
    )
