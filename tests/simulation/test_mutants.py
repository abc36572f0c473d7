"""Each sabotage of the code must be caught, every run: also each place where something is made durable."""

from __future__ import annotations

import pytest
from adr010 import DeleteAndCreate
from explore import Violation, Weather, explore, wander
from mutants import ALL, Mutant
from sabotage import BEYOND, Site, sabotaged, sync_sites
from scenarios import SYNCED
from workers import Scenario

SYNCS = [(number, site) for number, site in enumerate(sync_sites()) if site.text not in BEYOND]


@pytest.mark.parametrize(("number", "mutant"), list(enumerate(ALL)), ids=[mutant.name for mutant in ALL])
def test_a_sabotage_is_caught(number: int, mutant: Mutant) -> None:
    found = sabotaged("mutant", number)
    assert found["caught"], f"expected {mutant.caught_by!r}, found {found['texts']}"


@pytest.mark.parametrize(("number", "site"), SYNCS, ids=[f"{s.module}:{s.lines[0]} {s.text}" for _, s in SYNCS])
def test_a_missing_sync_is_caught(number: int, site: Site) -> None:
    assert sabotaged("sync", number)["caught"], f"{site.module}:{site.lines[0]}: nobody misses {site.text}"


def test_every_exception_is_one() -> None:
    assert set(BEYOND) <= {site.text for site in sync_sites()}


@pytest.mark.parametrize("mutant", {m.scenario: m for m in ALL}.values(), ids=lambda mutant: mutant.scenario.name)
def test_without_a_change_nothing_is_found(mutant: Mutant) -> None:
    if mutant.weather is None:
        explore(mutant.scenario, preemptions=mutant.preemptions, crashes=mutant.crashes, max_runs=500)
    else:
        wander(mutant.scenario, range(60), mutant.weather)


@pytest.mark.parametrize("scenario", SYNCED, ids=lambda scenario: scenario.name)
def test_without_a_change_no_sync_is_missed(scenario: Scenario) -> None:
    wander(scenario, range(30), Weather(crashes=1, cuts=0.5))


def test_the_protocol_of_adr_010_completes_a_task_twice() -> None:
    scenario = Scenario("adr 010", ("claim ack", "claim ack"), log=DeleteAndCreate)
    with pytest.raises(Violation, match=r"completed twice|created by|removed the witness") as caught:
        explore(scenario, preemptions=2, crashes=0)
    print(caught.value)


def test_cancelling_a_scheduled_task_in_its_place_is_caught() -> None:
    scenario = Scenario("in place", ("promote claim ack", "withdraw_in_place", "claim ack"), before="schedule")
    with pytest.raises(Violation):
        explore(scenario, preemptions=2, crashes=0)
