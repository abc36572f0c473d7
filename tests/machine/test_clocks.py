"""A clock that jumps neither steals, freezes, hurries nor removes anything."""

from __future__ import annotations

from stage_kit import stage


def test_jumps_of_the_time_of_day_change_nothing() -> None:
    figures = stage("clocks", 12)["figures"]
    assert figures["clock jumps"] >= 2


def test_leases_delays_and_ages_that_go_by_the_time_of_day_are_caught() -> None:
    assert stage("clocks", 0, sabotage="wall-clock")["violations"] >= 3
