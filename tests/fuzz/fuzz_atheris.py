"""The process in which atheris runs: fuzz_atheris.py FOUND SABOTAGE TARGETS CORPUS [options of libFuzzer].

The first byte of an input says which target it is for. Violations are written to FOUND, each kind once, and it goes on.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

import atheris

with atheris.instrument_imports(include=["dfq"]):
    import fuzz_targets

from fuzz_oracle import Judge, Violation, failure_of
from fuzz_sabotage import SABOTAGES


def main() -> None:
    found, sabotage, names, *options = sys.argv[1:]
    targets = [fuzz_targets.TARGETS[name] for name in names.split(",")]
    judge = Judge(alarm=False)  # libFuzzer has the alarm clock
    known: set[tuple[str, str]] = set()

    def run(data: bytes) -> None:
        if not data:
            return
        target = targets[data[0] % len(targets)]
        try:
            judge.check(target, data[1:])
        except Violation as e:
            failure = failure_of(target.name, e, data[1:])
            if failure.key in known:
                return
            known.add(failure.key)
            line = {"target": failure.target, "what": failure.what, "where": failure.where, "data": failure.data.hex()}
            with open(found, "a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")

    with ExitStack() as stack:
        if sabotage:
            stack.enter_context(SABOTAGES[sabotage].done())
        atheris.Setup([sys.argv[0], *options], run)
        atheris.Fuzz()


main()
