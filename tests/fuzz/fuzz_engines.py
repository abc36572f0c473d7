"""The two engines: hypothesis, which thinks in damages, and atheris, which follows what code an input reaches."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_inputs import TOKENS, inputs, seeds
from fuzz_oracle import Failure, Judge, Target, Violation, failure_of
from fuzz_place import PLACE, scratch
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, Phase, given, seed, settings

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
CHUNK = 25  # examples of a target before the next one gets its turn
ATHERIS = "atheris>=2.3"


@dataclass(slots=True)
class Outcome:
    """What an engine did."""

    tried: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    not_run: str | None = None

    @property
    def per_minute(self) -> int:
        return round(self.tried / self.seconds * 60) if self.seconds else 0


def try_seeds(judge: Judge, targets: Iterable[Target]) -> list[Failure]:
    """Try the valid inputs; they are inputs too."""
    failures = []
    for target in targets:
        for data in seeds(target.name):
            try:
                judge.check(target, data)
            except Violation as e:
                failures.append(failure_of(target.name, e, data))
    return failures


def hypothesis_round(
    judge: Judge, target: Target, number: int, examples: int = CHUNK, *, shrink: bool = True
) -> Failure | None:
    """Draw so many inputs for a target; return the smallest one that shows a violation, None if none does."""
    last = b""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(inputs(target.name))
    def run(alike: list[bytes]) -> None:
        nonlocal last
        for data in alike:
            last = data
            judge.check(target, data)

    try:
        run()
    except Violation as e:
        return failure_of(target.name, e, last)
    return None


def run_hypothesis(
    seconds: float, number: int, targets: Iterable[Target] = tuple(TARGETS.values()), *, once: bool = True
) -> Outcome:
    """Go around the targets until the time is over; at least once (or as far as it gets), each with a new seed."""
    outcome, judge = Outcome(), Judge()
    began = time.monotonic()
    outcome.failures += try_seeds(judge, targets)
    failed = {failure.target for failure in outcome.failures}
    rounds = 0
    while rounds == 0 or time.monotonic() - began < seconds:
        for target in targets:
            if time.monotonic() - began >= seconds and (rounds or not once):
                break
            if target.name in failed:
                continue
            failure = hypothesis_round(judge, target, number + rounds)
            if failure is not None:
                outcome.failures.append(failure)
                failed.add(target.name)
        rounds += 1
    outcome.tried, outcome.seconds = judge.tried, time.monotonic() - began
    return outcome


def find_atheris(say: Callable[[str], None]) -> tuple[str | None, str | None]:
    """Return (where atheris lies, None), or (None, why there is none); it is installed into .cache if missing."""
    tag = f"{sys.implementation.cache_tag}-{platform.machine()}"
    folder = REPO / ".cache" / "fuzz" / tag
    if not (folder / "atheris").is_dir():
        say(f"installing {ATHERIS} into {folder}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--only-binary=:all:",
            "--target",
            str(folder),
            ATHERIS,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["pip failed"]
            return None, f"atheris has no wheel for {tag}, or pip cannot fetch it: {lines[-1][:200]}"
    probe = [sys.executable, "-c", "import atheris"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, env=_env(folder))
    if done.returncode != 0:
        return None, f"atheris does not load here: {done.stderr.strip().splitlines()[-1][:200]}"
    return str(folder), None


def run_atheris(
    seconds: float, number: int, work: Path, say: Callable[[str], None], *, sabotage: str = "", only: str = ""
) -> Outcome:
    """Let atheris run in a process of its own for so long."""
    where, why = find_atheris(say)
    if where is None:
        return Outcome(not_run=why)
    names = [only] if only else list(TARGETS)
    corpus = work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for n, name in enumerate(names):
        for k, data in enumerate(seeds(name)):
            (corpus / f"{n}-{k}").write_bytes(bytes([n]) + data)
    tokens = work / "tokens"
    tokens.write_text("".join(f'"{_escaped(token)}"\n' for token in TOKENS if len(token) <= 64))
    found = work / "found.jsonl"
    files = scratch("dfq-fuzz-atheris-")  # libFuzzer ends without letting Python clear up
    command = [
        sys.executable, str(HERE / "fuzz_atheris.py"), str(found), sabotage, ",".join(names), str(corpus),
        f"-max_total_time={max(1, int(seconds))}", f"-seed={number % 2**31 or 1}", f"-dict={tokens}", "-max_len=8192",
        "-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={work}/",
    ]  # fmt: skip
    env = _env(Path(where)) | {PLACE: str(files)}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, env=env, timeout=seconds + 90
        )
    except subprocess.TimeoutExpired:
        return Outcome(failures=[Failure("atheris", "it did not come to its end", b"")])
    finally:
        shutil.rmtree(files, ignore_errors=True)
    outcome = Outcome(seconds=time.monotonic() - began)
    units = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    outcome.tried = int(units[1]) if units else 0
    if found.exists():
        for line in found.read_text().splitlines():
            one = json.loads(line)
            outcome.failures.append(Failure(one["target"], one["what"], bytes.fromhex(one["data"]), one["where"]))
    if done.returncode != 0 or not units:
        outcome.failures.append(Failure("atheris", f"ended with {done.returncode}: {done.stderr[-600:]}", b""))
    return outcome


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{b:02x}" for b in token)


def _env(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{folder}:{REPO}:{HERE}", "PYTHONHASHSEED": "0"}
