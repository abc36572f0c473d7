"""Commands that check: a queue's files, the node that workers run on, the filesystem that a queue is to live on."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import click

from dfq.cli.options import json_option, queue_options, settings_here, where
from dfq.cli.output import on_terminal, print_json, print_rows, say

FAILED = 1
GREEN, YELLOW, RED, DIM = "green", "yellow", "bold red", "dim"
MAX_ROWS = 1000  # that a table shows; who wants more reads lines
BAR_AFTER = 1.0  # seconds that a check may take before it shows how far it is

if TYPE_CHECKING:
    from dfq.providers.filesystem.faults import Finding


@click.command(short_help="Check the queue's files, and repair them.")
@click.option("--repair", is_flag=True, help="Put right what can be without a person; workers may run meanwhile.")
@queue_options
@json_option
def fsck(repair: bool, as_json: bool) -> None:
    """Check the files of the queue against its format.

    A finding is "must" (data was or may be lost, or a task completed twice: look at it) or "should". Without --repair
    nothing is changed; with it, only what a worker would also do is done, and nothing is removed that is not the
    queue's. The exit status is 1 if anything remains. Piped, a line is: level, code, path, what is wrong, what to do.
    """
    from dfq.errors import Unsupported
    from dfq.providers.filesystem.check import check_queue

    settings = settings_here()
    if settings.queue_type != "filesystem":
        raise Unsupported(f"queue_type = {settings.queue_type!r} has no files to check")
    must = should = repaired = 0

    def counted(findings: Iterator[Finding]) -> Iterator[Finding]:
        nonlocal must, should, repaired
        for f in findings:
            repaired += f.repaired
            must += f.level == "must" and not f.repaired
            should += f.level == "should" and not f.repaired
            yield f

    with _bar(shown=not as_json) as progress:
        findings = counted(check_queue(where().name, settings, repair=repair, progress=progress))
        if as_json:
            for f in findings:
                print_json(dataclasses.asdict(f))
        rows = ((_outcome(f), f.code, f.path, f.found, f.fix) for f in findings)
        if not on_terminal():
            print_rows((), rows)  # as they are found
        table = list(itertools.islice(rows, MAX_ROWS))  # a table is drawn when the bar is gone
        more = sum(1 for _ in rows)
    if table:
        styles = {"must": RED, "should": YELLOW, "repaired": GREEN}
        print_rows(("level", "code", "path", "found", "what to do"), table, styles=styles)
    if more:
        say(f"{more} more are not shown: pipe the output, or use --json")
    left = must + should
    say(f"{left or 'no'} finding{'' if left == 1 else 's'}: {must} must, {should} should; {repaired} repaired")
    if left:
        raise click.exceptions.Exit(FAILED)


def _outcome(finding: Finding) -> str:
    return "repaired" if finding.repaired else finding.level


@contextlib.contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Show on a terminal how far a long check is."""
    if not (shown and on_terminal() and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("checking", total=None, visible=False)

        def progress(done: int, total: int) -> None:
            bar.update(line, completed=done, total=total, visible=time.monotonic() - began > BAR_AFTER)

        yield progress


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
