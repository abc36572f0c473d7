"""Everything at once, for a short while."""

from __future__ import annotations

import pytest
from stage_kit import stage

pytestmark = pytest.mark.slow


def test_nothing_is_lost_or_completed_twice_whatever_happens() -> None:
    figures = stage("soak", 20)["figures"]
    assert (figures["lost"], figures["double"]) == (0, 0)
    for what in ("tasks", "completed", "kill -9", "SIGSTOP longer than the lease", "clock jumps"):
        assert figures[what] > 0, what
    assert figures["times the disk was full"] > 0


def test_an_ack_that_does_not_look_whether_it_was_superseded_is_caught() -> None:
    assert stage("soak", 20, sabotage="blind-ack")["figures"]["double"] > 0
