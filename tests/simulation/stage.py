"""The simulator at length: random schedules, power cuts, exhaustive search, sabotages.

    python stage.py schedules|cuts|search|sabotage --seconds 60 [--seed 1]

Works on all cores for so long. The last line of stdout is JSON with the figures; exit 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from explore import Tally, Violation, Weather, explore, wander  # noqa: E402
from scenarios import LONG, MANY, PATIENT, POWER_AND_GAPS, RETIRED, SYNCED, THREE, TWO, WHOLE  # noqa: E402
from workers import Scenario  # noqa: E402

TURN = 1.0  # seconds for a scenario before it is another's turn
CHUNK = 100  # seeds between two looks at the clock
CUT_CHUNK = 20

Job = tuple[Scenario, Weather]

CALM = Weather(crashes=2)
STORMY = Weather(crashes=1, errors=0.06, lags=0.08, jumps=0.04, passes=0.04)
CLOCKS = Weather(crashes=1, jumps=0.15, passes=0.15)


def random_jobs() -> list[Job]:
    calm = [(scenario, CALM) for scenario in [*MANY, *WHOLE, *LONG, *TWO, *RETIRED]]
    stormy = [(replace(scenario, faulty=True), STORMY) for scenario in [*MANY, *WHOLE, *RETIRED, *PATIENT]]
    checked = [(replace(scenario, fsck=True, fsck_at_end=True), CALM) for scenario in TWO]
    return calm + stormy + checked + [(scenario, CLOCKS) for scenario in [*PATIENT, *RETIRED]]


def cut_jobs() -> list[Job]:
    plain = [(scenario, Weather(crashes=1, cuts=0.6)) for scenario in [*POWER_AND_GAPS, *SYNCED]]
    return plain + [(replace(s, faulty=True), Weather(cuts=0.5, errors=0.08)) for s in POWER_AND_GAPS]


def walk(jobs: list[Job], until: float, seed: int, chunk: int) -> tuple[Tally, list[str]]:
    """Go round the jobs until the time is over; return what was done, and what went wrong."""
    total, wrong = Tally(), list[str]()
    seen: list[set[int]] = [set() for _ in jobs]
    following = [seed << 32 for _ in jobs]
    gc.freeze()
    gc.disable()
    for number in itertools.cycle(range(len(jobs))):
        (scenario, weather), turn_ends = jobs[number], time.time() + TURN
        while time.time() < min(turn_ends, until):
            start = following[number]
            following[number] += chunk
            try:
                total.add(wander(scenario, range(start, start + chunk), weather, seen[number]))
            except Violation as violation:
                wrong.append("\n".join([*violation.__notes__, str(violation)]))
        gc.collect()
        if time.time() >= until:
            break
    return total, wrong


def at_random(jobs: list[Job], seconds: float, seed: int, chunk: int) -> tuple[Tally, list[str]]:
    cores = os.cpu_count() or 1
    until, total, wrong = time.time() + seconds, Tally(), list[str]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context) as pool:
        parts = [pool.submit(walk, jobs[n::cores], until, seed, chunk) for n in range(cores)]
        for part in parts:
            tally, texts = part.result()
            total.add(tally)
            wrong += texts
    return total, wrong


def schedules(seconds: float, seed: int) -> tuple[dict[str, Any], list[str]]:
    jobs = random_jobs()
    total, wrong = at_random(jobs, seconds, seed, CHUNK)
    figures = {
        "scenarios": len(jobs),
        "random schedules": total.runs,
        "distinct ends": total.states,
        "crashes, errors, lost replies, lags, clock jumps": total.faults,
    }
    return figures, wrong


def cuts(seconds: float, seed: int) -> tuple[dict[str, Any], list[str]]:
    jobs = cut_jobs()
    total, wrong = at_random(jobs, seconds, seed, CUT_CHUNK)
    return {"scenarios": len(jobs), "power-cut images": total.images, "distinct ends": total.states}, wrong


def bounds() -> Iterator[tuple[Scenario, int, int]]:
    """Yield what to search, the shallow first."""
    levels: list[tuple[list[Scenario], int, int]] = [
        ([*TWO, *WHOLE, *RETIRED, *THREE], 1, 1),
        (TWO, 2, 1),
        (THREE, 2, 0),
        ([*WHOLE, *RETIRED], 2, 0),
        (PATIENT, 2, 0),
        (TWO, 3, 0),
        ([*WHOLE, *RETIRED], 2, 1),
        (THREE, 2, 1),
        (TWO, 3, 1),
        (TWO, 4, 0),
        (THREE, 3, 0),
        (TWO, 4, 1),
    ]
    for scenarios, preemptions, crashes in levels:
        for scenario in scenarios:
            yield scenario, preemptions, crashes


def searched(scenario: Scenario, preemptions: int, crashes: int, until: float) -> tuple[Tally | None, str]:
    if time.time() >= until:
        return None, ""
    gc.disable()
    try:
        tally = explore(scenario, preemptions=preemptions, crashes=crashes, until=until)
    except Violation as violation:
        return None, "\n".join([*violation.__notes__, str(violation)])
    finally:
        gc.enable()
    return (tally, "") if tally.complete else (None, "")


def search(seconds: float, seed: int) -> tuple[dict[str, Any], list[str]]:
    until, total, wrong, done = time.time() + seconds, Tally(), list[str](), list[str]()
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = list(bounds())
        for (scenario, preemptions, crashes), (tally, text) in zip(
            jobs, pool.map(searched, *zip(*jobs, strict=True), itertools.repeat(until)), strict=False
        ):
            if text:
                wrong.append(text)
            if tally is not None:
                total.add(tally)
                done.append(f"{len(scenario.scripts)} processes, {preemptions} preemptions, {crashes} crashes")
    figures = {"searches to the end": len(done), "schedules": total.runs, "distinct states": total.states}
    figures |= {f"of these with {bound}": done.count(bound) for bound in sorted(set(done))}
    return figures, wrong


def sabotage(seconds: float, seed: int) -> tuple[dict[str, Any], list[str]]:
    from adr010 import DeleteAndCreate
    from mutants import ALL
    from sabotage import BEYOND, sabotaged, sync_sites

    jobs = [("mutant", number) for number in range(len(ALL))]
    jobs += [("sync", number) for number, site in enumerate(sync_sites()) if site.text not in BEYOND]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda job: sabotaged(*job), jobs))
    wrong = [f"not caught: {one['name']}: {one['texts']}" for one in found if not one["caught"]]
    steps = "it was not"
    try:
        explore(Scenario("adr 010", ("claim ack", "claim ack"), log=DeleteAndCreate), preemptions=2, crashes=0)
        wrong.append("the protocol of ADR 010 passed")
    except Violation as violation:
        steps = violation.texts[0]
    figures = {
        "sabotages": len(jobs),
        "caught": sum(1 for one in found if one["caught"]),
        "of these, syncs left out": sum(1 for kind, _ in jobs if kind == "sync"),
        "ADR 010's own protocol is refuted": steps,
    }
    return figures, wrong


STAGES: dict[str, Callable[[float, int], tuple[dict[str, Any], list[str]]]] = {
    "schedules": schedules,
    "cuts": cuts,
    "search": search,
    "sabotage": sabotage,
}
NOT_COVERED = {
    "schedules": [
        "more than one task at a time, but for pushes of many; index queues; the threads and processes of a worker",
        "a clock that is set away and back again by the same amount between two looks at it",
        "a process that is stopped inside a claim or an ack for longer than the guard time (ADR 018)",
    ],
    "cuts": ["durability = fast, which promises nothing; a disk that lies about a sync"],
    "search": ["more preemptions or crashes than stated; faults other than crashes"],
    "sabotage": ["sabotages that nobody thought of"],
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began = time.monotonic()
    figures, wrong = STAGES[args.stage](args.seconds, args.seed)
    for text in wrong:
        print(text, file=sys.stderr)
    report = {
        "stage": args.stage,
        "violations": len(wrong),
        "seconds": round(time.monotonic() - began, 1),
        "figures": figures,
        "not_run": None,
        "not_covered": NOT_COVERED[args.stage],
    }
    print(json.dumps(report))
    return 1 if wrong else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed must give the same run in every process
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
