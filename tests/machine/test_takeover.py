"""An idle worker has the task of one that was killed, long before its lease is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from stage_kit import stage

pytestmark = pytest.mark.slow


def test_an_idle_worker_takes_over_from_a_killed_one(record_property: Callable[[str, object], None]) -> None:
    figures = stage("takeover", 10)["figures"]
    assert figures["holders killed"] >= 20
    assert figures["workers killed whose task had started processes"] >= 2
    for name in ("takeover, p50 (ms)", "takeover, p99 (ms)"):
        record_property(name, figures[name])


def test_a_worker_that_is_not_told_of_a_death_is_caught() -> None:
    stage("takeover", 1, sabotage="deaf")


def test_a_task_that_is_handed_out_while_a_process_of_it_still_runs_is_caught() -> None:
    stage("takeover", 1, sabotage="ends-nothing")
