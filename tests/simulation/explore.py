"""Schedules of simulated processes: all of them up to a bound, or random ones."""

from __future__ import annotations

import errno
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shrink import shown
from workers import Scenario, deterministic
from world import Move, Process, Run, Violation

__all__ = ["Tally", "Violation", "Weather", "explore", "wander"]

ERRORS = (errno.EIO, errno.ENOSPC)
JUMPS = (90.0, 7200.0, 40 * 86400.0)  # up to so far, either way; never back to exactly where the clock was
PASSES = (0.5, 5.0, 50.0, 90.0)


@dataclass
class Tally:
    """How much was looked at."""

    runs: int = 0
    states: int = 0  # distinct ones
    images: int = 0  # power cuts
    faults: int = 0  # crashes, errors, lost replies, listings that lag, jumps of the clock
    complete: bool = True  # False if it stopped at max_runs

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.states += other.states
        self.images += other.images
        self.faults += other.faults
        self.complete &= other.complete


# -- all of them -----------------------------------------------------------------------------------


@dataclass
class _Search:
    """Depth first, without the states that were seen with as large a budget."""

    scenario: Scenario
    start: Run
    seen: dict[Any, list[tuple[int, int]]] = field(default_factory=dict)
    ends: set[int] = field(default_factory=set)
    todo: list[tuple[tuple[Move, ...], int, int]] = field(default_factory=list)

    def play(self, prefix: tuple[Move, ...], preemptions: int, crashes: int) -> None:
        run = Run(self.scenario, self.start, exploring=True)
        run.follow(prefix)
        while alive := run.alive():
            budgets = self.seen.setdefault(run.key(), [])
            if any(p >= preemptions and c >= crashes for p, c in budgets):
                run.abandon()
                return
            budgets.append((preemptions, crashes))
            current = run.current if run.current in alive else None
            so_far = _packed(run.moves)
            others = [p for p in alive if p is not (current or alive[0])]
            if preemptions or current is None:
                spent = preemptions - (current is not None)
                self.todo += [((*so_far, ("go", p.name, 1)), spent, crashes) for p in others]
            # A process that is not running can as well die at the moment when it would be resumed.
            mortal = [p for p in ([current] if current else alive) if crashes and p.changes]
            self.todo += [((*so_far, ("crash", p.name)), preemptions, crashes - 1) for p in mortal]
            run.make(("go", (current or alive[0]).name, 1))
        run.seen = self.ends
        run.finish_once()


def explore(
    scenario: Scenario, *, preemptions: int, crashes: int, max_runs: int = 10_000_000, until: float = math.inf
) -> Tally:
    """Try every schedule with so many preemptions and crashes, unless the time is over before. Raises Violation."""
    tally = Tally()
    with deterministic():
        search = _Search(scenario, Run(scenario))
        search.todo.append(((), preemptions, crashes))
        while search.todo and tally.runs < max_runs and (tally.runs % 100 or time.time() < until):
            random.seed(0)
            try:
                search.play(*search.todo.pop())
            except Violation as violation:
                raise shown(scenario, violation.moves, every_call=False) from None
            tally.runs += 1
    tally.states, tally.complete = len(search.seen), not search.todo
    return tally


def _packed(moves: list[Move]) -> tuple[Move, ...]:
    """Return moves with those of one process in a row made one."""
    packed: list[Move] = []
    for move in moves:
        if packed and move[0] == "go" == packed[-1][0] and move[1] == packed[-1][1]:
            packed[-1] = ("go", move[1], packed[-1][2] + move[2])
        else:
            packed.append(move)
    return tuple(packed)


# -- at random -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weather:
    """What may happen besides a change of turns: the chance of each, per turn."""

    crashes: int = 1  # at the most
    cuts: float = 0.0
    errors: float = 0.0
    lags: float = 0.0
    jumps: float = 0.0
    passes: float = 0.0


def _random_moves(run: Run, rng: random.Random, weather: Weather) -> Iterator[Move]:
    """Yield moves for as long as the run goes on. Some runs switch at every other call, some hardly ever."""
    pace = rng.choice((0.5, 0.15, 0.15, 0.04))
    scale = 1 / math.log(1 - pace)
    crashes = rng.randint(0, weather.crashes)
    deadly = 0.15 * crashes
    while alive := run.alive():
        process = alive[int(rng.random() * len(alive))]
        if weather.cuts and rng.random() < weather.cuts:
            yield ("cut", rng.getrandbits(32))
        if crashes and rng.random() < deadly:
            crashes -= 1
            yield ("crash", process.name)
            continue
        yield from _trouble(process, rng, weather)
        yield ("go", process.name, 1 + int(math.log(1 - rng.random()) * scale))


def _trouble(process: Process, rng: random.Random, weather: Weather) -> Iterator[Move]:
    if weather.errors and rng.random() < weather.errors:
        yield (rng.choice(("fail", "fail", "lose")), process.name, rng.choice(ERRORS))
    if weather.lags and rng.random() < weather.lags:
        yield ("lag", process.name, rng.randint(1, 4))
    if weather.jumps and rng.random() < weather.jumps:
        farthest = rng.choice(JUMPS)
        yield ("jump", round(rng.uniform(-farthest, farthest), 3))
    if weather.passes and rng.random() < weather.passes:
        yield ("pass", rng.choice(PASSES))


def wander(scenario: Scenario, seeds: range, weather: Weather | None = None, seen: set[int] | None = None) -> Tally:
    """Try random schedules, one for each seed, and look at every end that was not seen before. Raises Violation.

    An end is what all processes left when they were over, or what a power cut did.
    """
    tally, ends = Tally(), set[int]() if seen is None else seen
    weather, before = weather or Weather(), len(ends)
    with deterministic():
        start = Run(scenario)
        for seed in seeds:
            random.seed(seed)
            run = Run(scenario, start, every_call=True)
            run.seen = ends
            try:
                for move in _random_moves(run, random.Random(seed), weather):
                    run.make(move)
                run.finish_once()
            except Violation as violation:
                found = shown(scenario, violation.moves, every_call=True)
                found.add_note(f"scenario {scenario.name!r}, seed {seed}, {weather}")
                raise found from None
            tally.runs += 1
            for move in run.moves:
                if move[0] == "cut":
                    tally.images += 1
                elif move[0] != "go":
                    tally.faults += 1
    tally.states = len(ends) - before
    return tally
