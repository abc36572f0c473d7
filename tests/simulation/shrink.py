"""From a run that broke a promise to the shortest like it, and to something that a person can read."""

from __future__ import annotations

import random
from collections.abc import Iterator

from workers import Scenario, deterministic
from world import WITHOUT_END, Move, Run, Violation

TRIES = 400


def play(scenario: Scenario, moves: list[Move], *, every_call: bool, traced: bool = False) -> Run:
    """Make moves, let every process come to its end, and look at what is left. Raises Violation."""
    with deterministic():
        random.seed(0)
        run = Run(scenario, Run(scenario), every_call=every_call, traced=traced)
        run.follow(moves)
        run.complete()
        run.finish()
        return run


def breaks(scenario: Scenario, moves: list[Move], *, every_call: bool, traced: bool = False) -> Violation | None:
    """Return what these moves break; None if nothing."""
    try:
        play(scenario, moves, every_call=every_call, traced=traced)
    except Violation as violation:
        return violation
    return None


def shrunk(scenario: Scenario, moves: list[Move], *, every_call: bool) -> list[Move]:
    """Return the fewest moves found that still break a promise: without parts, and with shorter turns."""
    moves, tries = _merged(moves), TRIES
    progress = True
    while progress and tries > 0:
        progress = False
        for shorter in _shorter(moves):
            tries -= 1
            if tries <= 0:
                break
            if breaks(scenario, shorter, every_call=every_call) is not None:
                moves, progress = _merged(shorter), True
                break
    return moves


def _shorter(moves: list[Move]) -> Iterator[list[Move]]:
    size = len(moves) // 2
    while size >= 1:
        for at in range(0, len(moves) - size + 1, size):
            yield moves[:at] + moves[at + size :]
        size //= 2
    for at, move in enumerate(moves):
        if move[0] == "go" and 1 < move[2] < WITHOUT_END:
            for fewer in (move[2] // 2, move[2] - 1):
                yield [*moves[:at], ("go", move[1], fewer), *moves[at + 1 :]]


def _merged(moves: list[Move]) -> list[Move]:
    merged: list[Move] = []
    for move in moves:
        if merged and move[0] == "go" == merged[-1][0] and move[1] == merged[-1][1]:
            merged[-1] = ("go", move[1], min(WITHOUT_END, merged[-1][2] + move[2]))
        else:
            merged.append(move)
    return merged


def shown(scenario: Scenario, moves: list[Move], *, every_call: bool) -> Violation:
    """Return a violation with its shortest moves and every step of them, as text."""
    short = shrunk(scenario, moves, every_call=every_call)
    found = breaks(scenario, short, every_call=every_call, traced=True)
    if found is None:  # the run needed its seed: the code under test throws dice
        found = breaks(scenario, moves, every_call=every_call, traced=True)
    if found is None:
        raise AssertionError(f"{scenario.name}: the violation does not show again with {moves}")
    found.add_note(f"replay: play({scenario.name!r}, {short}, every_call={every_call})")
    return found
