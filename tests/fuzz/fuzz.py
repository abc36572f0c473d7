"""Fuzzes every parser, and whole queues with bad files in them: python tests/fuzz/fuzz.py --seconds N [--seed S]

The last line of stdout is a JSON object with what was measured. Exit 0: no violation; 1: there is one, and it says how
to see it again; 3: it could not run. With --round R it runs only that round of a whole queue.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from fuzz_engines import Outcome, run_atheris, run_hypothesis  # noqa: E402
from fuzz_oracle import Failure  # noqa: E402
from fuzz_queues import Failed, quiet, run_round  # noqa: E402
from fuzz_round import Rounds  # noqa: E402
from fuzz_sabotage import IN_QUEUES, SABOTAGES, caught_by_hypothesis, caught_by_queues  # noqa: E402
from fuzz_targets import TARGETS  # noqa: E402

SHARES = {"hypothesis": 0.3, "atheris": 0.35, "queues": 0.35}  # of the time that the sabotages leave
NOT_COVERED = [
    "files that change while they are read (the simulation and the crash tests have those)",
    "a file in the place of a folder in which good tasks lie: their shard waits until a person moves it",
    "files in an index that are not looked at by fsck",
    "payloads near 64 MiB: inputs are at most 256 KiB, memory is measured for each byte of input",
    "fuzzing the C code under json, tomllib and re",
]


def say(text: str) -> None:
    print(f"fuzz: {text}", file=sys.stderr, flush=True)


def fuzz_queues(seconds: float, seed: int, told: Rounds) -> list[Failure]:
    """Run rounds until the time is over; at least ten."""
    failures: list[Failure] = []
    began, number = time.monotonic(), seed
    while number - seed < 10 or time.monotonic() - began < seconds:
        try:
            run_round(number, told)
        except Failed as e:
            failures.append(Failure("whole queue", str(e), b""))
            if len(failures) == 3:
                break
        number += 1
    return failures


def report(failures: list[Failure], seed: int) -> None:
    """Say what is wrong, and keep the inputs that show it."""
    if not failures:
        return
    kept = Path(tempfile.mkdtemp(prefix="dfq-fuzz-evidence-"))
    for n, failure in enumerate(failures):
        say(f"VIOLATION in {failure.target}: {failure.what[:1000]}")
        if failure.data:
            (kept / f"{n}.bin").write_bytes(failure.data)
            say(f"  input: {kept / f'{n}.bin'} ({len(failure.data)} bytes: {failure.data[:80]!r})")
    say(f"again: python tests/fuzz/fuzz.py --seconds N --seed {seed}, or --round R for a round of a whole queue")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--round", type=int, default=None)
    given = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) % 10**8 if given.seed is None else given.seed
    warnings.simplefilter("ignore")  # of hypothesis, which finds the inputs large
    quiet()
    told = Rounds()
    if given.round is not None:
        run_round(given.round, told)
        say(f"round {given.round}: nothing wrong")
        return 0
    say(f"seed {seed}, {given.seconds:g} s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is removed
    began = time.monotonic()
    missed = [name for name in SABOTAGES if not caught_by_hypothesis(name, seed)]
    missed += [name for name in IN_QUEUES if not caught_by_queues(name)]
    controls = len(SABOTAGES) + len(IN_QUEUES)
    say(f"{controls - len(missed)} of {controls} sabotages noticed in {time.monotonic() - began:.1f} s")
    left = max(3.0, given.seconds - (time.monotonic() - began))
    found = run_hypothesis(SHARES["hypothesis"] * left, seed)
    say(f"hypothesis: {found.tried:,} inputs, {len(found.failures)} violations")
    work = Path(tempfile.mkdtemp(prefix="dfq-atheris-"))
    try:
        guided = run_atheris(SHARES["atheris"] * left, seed, work, say)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(guided.not_run or f"atheris: {guided.tried:,} inputs, {len(guided.failures)} violations")
    began_queues = time.monotonic()
    failures = fuzz_queues(max(1.0, given.seconds - (began_queues - began)), seed, told)
    say(f"{told.queues} queues with {told.bad_files} bad files, {len(failures)} violations")
    failures = [*found.failures, *guided.failures, *failures]
    failures += [Failure("sabotage", f"not noticed: {name}", b"") for name in missed]
    report(failures, seed)
    seconds = time.monotonic() - began
    figures = figures_of(found, guided, told, time.monotonic() - began_queues) | {
        "sabotages noticed": f"{controls - len(missed)} of {controls}",
        "seed": seed,
    }
    line = {"stage": "fuzz", "violations": len(failures), "seconds": round(seconds, 1), "figures": figures}
    covered = [*NOT_COVERED, *([f"coverage-guided inputs: {guided.not_run}"] if guided.not_run else [])]
    print(json.dumps(line | {"not_run": None, "not_covered": covered}))
    return 1 if failures else 0


def figures_of(found: Outcome, guided: Outcome, told: Rounds, seconds: float) -> dict[str, object]:
    """Return what was measured, in words."""
    return {
        "targets": len(TARGETS),
        "inputs tried by hypothesis": found.tried,
        "inputs a minute, hypothesis": found.per_minute,
        "inputs tried by atheris": guided.tried,
        "inputs a minute, atheris": guided.per_minute if guided.not_run is None else guided.not_run,
        "queues with bad files in them": told.queues,
        "bad files in them": told.bad_files,
        "kinds of bad files": len(told.kinds),
        "queues a minute": round(told.queues / seconds * 60) if seconds else 0,
        "good tasks beside them, all completed": told.good_tasks,
        "of these queues, worked off by dfq work as a process": told.processes,
        "polls that said the queue is unavailable, and then went on": told.unavailable,
        "files that went because a damaged witness says that their task is over": told.unproven,
    }


if __name__ == "__main__":
    sys.exit(main())
