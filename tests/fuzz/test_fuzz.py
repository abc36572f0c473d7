"""The short form of the stage: every target, whole queues with bad files, and sabotages that must be noticed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_engines import find_atheris, hypothesis_round, run_atheris, try_seeds
from fuzz_inputs import DAMAGES
from fuzz_oracle import Hang, Judge, Violation, measuring, time_limit
from fuzz_queues import quiet, run_round
from fuzz_round import Rounds
from fuzz_sabotage import IN_QUEUES, SABOTAGES, caught_by_hypothesis, caught_by_queues
from fuzz_strangers import KINDS
from fuzz_targets import TARGETS

pytestmark = pytest.mark.timeout(120)
SEED = 2026
EXAMPLES = 12  # drawings for each target here; each is up to six inputs


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    quiet()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_raises_what_it_documents_and_nothing_else(name: str) -> None:
    judge = Judge()
    assert try_seeds(judge, [TARGETS[name]]) == []
    failure = hypothesis_round(judge, TARGETS[name], SEED, EXAMPLES)
    assert failure is None, f"{failure.what}: {failure.data[:500]!r}"
    assert judge.tried >= EXAMPLES


def test_the_valid_files_are_taken() -> None:
    """Else the damaged ones would never get past the first look."""
    judge = Judge()
    assert try_seeds(judge, [TARGETS["task"], TARGETS["queue.json"], TARGETS["dfq.toml"]]) == []
    assert judge.refused == 0


def test_bad_files_in_a_queue_keep_nobody_from_the_good_tasks() -> None:
    told = Rounds()
    for number in range(SEED, SEED + 16):
        run_round(number, told)
    assert told.queues == 16
    assert told.bad_files > 16
    assert len(told.kinds) > len(KINDS) // 3


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_check_that_is_taken_out_is_missed(name: str) -> None:
    assert caught_by_hypothesis(name, SEED)


@pytest.mark.parametrize("name", IN_QUEUES)
def test_a_check_that_is_taken_out_is_missed_in_whole_queues(name: str) -> None:
    assert caught_by_queues(name)


def test_time_and_memory_are_looked_at() -> None:
    def spin() -> None:
        while True:
            pass

    with pytest.raises(Hang), time_limit(0.05):
        spin()
    with pytest.raises(Violation, match="bytes of memory"), measuring(10):
        assert [bytes(1024) for _ in range(10_000)]


def test_atheris_notices_a_sabotage(tmp_path: Path) -> None:
    where, why = find_atheris(print)
    if where is None:
        pytest.skip(f"NOT RUN: {why}")
    sabotage = "the id of a task not compared with its name"
    outcome = run_atheris(3, SEED, tmp_path, print, sabotage=sabotage, only="task")
    assert any("another file" in failure.what for failure in outcome.failures), outcome
    assert outcome.tried > 100


def test_each_damage_changes_something() -> None:
    for name, damage in DAMAGES.items():
        data = b'{"id": "bad", "payload": {"n": 1}, "attempt": 3}'
        assert any(damage(data, random.Random(n)) != data for n in range(5)), name
