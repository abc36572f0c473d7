"""A process may be killed at any system call of any operation."""

from __future__ import annotations

import machine_kit  # noqa: F401 - it says where call_cases looks
import pytest
from call_cases import CASES
from stage_kit import stage

pytestmark = pytest.mark.slow

PARTS = 3
NAMES = [case.name for case in CASES]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_process_may_be_killed_after_any_call_that_changes_something(part: int) -> None:
    names = NAMES[part::PARTS]
    figures = stage("calls", 0, "--only", ",".join(names))["figures"]
    assert figures["operations"] == len(names)
    assert figures["states repaired"] == figures["crash points (system calls) hit"] > 5 * len(names)


def test_any_call_of_an_ack_may_fail() -> None:
    report = stage("calls", 12, "--only", "ack,ack-delete,nack")
    assert report["figures"]["errors injected"] > 50


def test_an_ack_that_removes_the_task_before_its_witness_is_there_is_caught() -> None:
    stage("calls", 0, "--only", "ack", sabotage="entry-goes-first")
