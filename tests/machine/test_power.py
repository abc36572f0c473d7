"""Power cuts on a real ext4, in short; and that leaving out a flush is noticed. The long form is uml/power.py."""

from __future__ import annotations

import pytest
from rig_kit import stage

pytestmark = pytest.mark.slow


def test_a_power_cut_anywhere_loses_nothing_that_was_promised() -> None:
    code, report = stage("uml/power.py", "--seconds", "25", "--seed", "7")
    assert (code, report["violations"]) == (0, 0), report
    assert report["figures"]["crash images mounted"] >= 16
    assert report["figures"]["promises checked"] > 0
    assert "control: durability = fast" in report["figures"]  # the stage fails itself if this lost nothing


@pytest.mark.parametrize("sabotage", ["no folder is flushed"])
def test_a_flush_that_is_left_out_is_noticed(sabotage: str) -> None:
    code, report = stage("uml/power.py", "--seconds", "10", "--seed", "7", "--sabotage", sabotage)
    assert code == 1
    assert report["violations"] > 0
