"""Commands that check: the node that workers run on, the filesystem that a queue is to live on."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import click

from dfq.cli.options import json_option, queue_options, where
from dfq.cli.output import on_terminal, print_json, print_rows, say

FAILED = 1
GREEN, YELLOW, RED, DIM = "green", "yellow", "bold red", "dim"


@click.command(short_help="Tell whether this node is fit: clock, disk, power, limits, settings.")
@queue_options
@json_option
def doctor(as_json: bool) -> None:
    """Tell whether this node is fit for a queue: its clock, disk, power, limits and settings.

    A finding is ok, warn, fail or unknown; the exit status is 1 if any is fail. Nothing is changed, and passwords in
    addresses are not shown. Piped, a line is: level, name, what was found, what to do.
    """
    from dfq.node import examine

    here = where()
    findings = examine(queue=here.name, root=here.root)
    if as_json:
        for finding in findings:
            print_json(dataclasses.asdict(finding))
    else:
        print_rows(
            ("level", "name", "found", "what to do"),
            ((f.level, f.name, f.found, f.fix) for f in findings),
            styles={"ok": GREEN, "warn": YELLOW, "fail": RED, "unknown": DIM},
        )
    failed = [f.name for f in findings if f.level == "fail"]
    if failed:
        say(f"this node is not fit: {', '.join(failed)}")
        raise click.exceptions.Exit(FAILED)


@click.command(short_help="Tell whether a filesystem keeps the promises that a queue needs.")
@click.argument("path", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--rounds",
    type=click.IntRange(1, 100_000),
    default=200,
    show_default=True,
    help="How often four processes race for each promise.",
)
@json_option
def verify_fs(path: str, rounds: int, as_json: bool) -> None:
    """Tell whether the filesystem of the folder PATH keeps the promises that a queue needs.

    Processes race each other in a subfolder, which is removed again. A promise is kept, weaker (a queue works, and the
    last column says what is different) or broken; the exit status is 1 if any is broken. Piped, a line is: verdict,
    promise, what was found, what it means.
    """
    from dfq.verify_fs import verify

    with _ended_by_signals():
        report = verify(path, rounds=rounds)
    if as_json:
        about = {"path": report.path, "filesystem": report.kind, "local": report.local}
        for verdict in report.verdicts:
            print_json(about | dataclasses.asdict(verdict))
    else:
        print_rows(
            ("verdict", "promise", "found", "what it means"),
            ((v.outcome, v.promise, v.found, v.means) for v in report.verdicts),
            styles={"kept": GREEN, "weaker": YELLOW, "broken": RED},
        )
    if report.left_behind:
        say(f"{report.left_behind} could not be removed: remove it")
    broken = sum(v.outcome == "broken" for v in report.verdicts)
    name = f"{report.path} ({report.kind})"
    if broken:
        say(f"{name} is not fit for a queue: {broken} of {len(report.verdicts)} promises are broken")
        raise click.exceptions.Exit(FAILED)
    if on_terminal():
        say(f"{name} is fit for a queue{'' if report.local else ', with leases that go by time'}")


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as an exception does, so that what was made is removed again."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
