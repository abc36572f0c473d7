"""dfq work: run workers on a queue."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from typing import TYPE_CHECKING

import click

from dfq.checks import MAX_DELAY, MAX_LEASE, MIN_LEASE
from dfq.cli.options import Time, json_option, open_here, queue_options, settings_here
from dfq.cli.output import nothing, print_json, say
from dfq.errors import QueueError

if TYPE_CHECKING:
    from dfq.queue import QueueManager
    from dfq.worker import WorkReport


@click.command(short_help="Run workers.")
@click.argument("handler", metavar="[PKG.MOD:FUNCTION]", required=False)
@click.option("--exec", "command", metavar="CMD", help="A command to run for each task, without a shell.")
@click.option("--workers", type=click.IntRange(1, 1000), default=1, help="Tasks at a time.  [default: 1]")
@click.option("--lease", type=Time(MIN_LEASE, MAX_LEASE), help="Of each task: 600, 10m.  [default: the queue's]")
@click.option("--timeout", type=Time(0.001, MAX_DELAY), help="How long one task may take: 90, 5m.")
@click.option("--max-tasks", type=click.IntRange(min=1), help="Replace a process after so many tasks.")
@click.option(
    "--max-rss",
    type=click.FloatRange(min=1),
    metavar="MB",
    help="Replace a process that has grown over this, after its task.",
)
@click.option("--drain", is_flag=True, help="End when nothing is left to do; see above.")
@click.option("--once", is_flag=True, help="Do one task, without waiting for it, and end.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", help="[default: text]")
@queue_options
@json_option
def work(
    handler: str | None,
    command: str | None,
    workers: int,
    lease: float | None,
    timeout: float | None,
    max_tasks: int | None,
    max_rss: float | None,
    drain: bool,
    once: bool,
    log_format: str,
    as_json: bool,
) -> None:
    """Run workers: a Python function (PKG.MOD:FUNCTION, called with the task) or a command (--exec).

    A command gets the payload on stdin and DFQ_TASK_ID, DFQ_TASK_TOKEN and DFQ_TASK_ATTEMPT in its
    environment. Exit 0 completes the task with stdout as its result, exit 75 gives it back without
    counting the attempt, anything else fails the attempt with the end of stderr as the error.

    SIGTERM, SIGINT and SIGHUP (unless ignored): no new tasks, running ones finish; once more gives them back.

    --drain waits for tasks of its own that failed or were given back, until they are done or dead letters. A
    task that is given back 10 times in a row, or for longer than the backoff's cap, is not waited for. At the end it
    says what is left. Exit status: 0 done, 1 a task became a dead letter or is given back again and again,
    3 there was nothing to do. --once: 0 done or given back, 1 the attempt failed, 3 no task.
    """
    from dfq.work.streams import fill_standard_descriptors

    fill_standard_descriptors()  # before the queue is opened: one of its files would become stderr
    if handler is not None and command is not None:
        raise click.UsageError("name a function or a command with --exec, not both; quote a command that has arguments")
    if handler is None and command is None:
        raise click.UsageError("name a function as PKG.MOD:FUNCTION, or a command with --exec 'CMD'")
    argv = _split(command) if command is not None else None
    if handler is not None and not all(handler.partition(":")):
        raise click.UsageError(f"{handler!r} is not of the form PKG.MOD:FUNCTION; for a command, say --exec")

    from dfq.worker import Worker, WorkOptions

    # As `python -m` does: a handler next to where one stands can be named without installing it.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    options = WorkOptions(
        workers=workers,
        lease=lease,
        timeout=timeout,
        max_tasks=max_tasks,
        max_rss=max_rss,
        drain=drain,
        once=once,
        log_format=log_format,
    )
    with open_here(create=True) as queue:
        settings = settings_here()
        worker = Worker(
            queue,
            command=argv,
            handler=handler,
            options=options,
            backoff=settings.backoff,
            max_output=settings.max_payload,
        )
        report = worker.run()
        left = _left(queue) if drain else ""
    totals = dataclasses.asdict(report)
    if as_json:
        print_json(totals)
    with contextlib.suppress(OSError):  # whoever read our log may have gone; how it went is told by the exit status
        if not as_json:
            say(_summary(report))
        if left:
            say(left)
        if report.stuck:
            say(f"{_many(report.stuck, 'task')} given back again and again: not waited for any longer")
    if not any(totals.values()) and (once or drain) and not worker.stopped:
        nothing("no task to work on")
    if (once and (report.failed or report.lost)) or (drain and (report.dead or report.stuck)):
        raise click.exceptions.Exit(1)


def _summary(report: WorkReport) -> str:
    parts = [f"{report.done} done", f"{_many(report.failed, 'attempt')} failed", f"{report.released} given back"]
    if report.dead:
        parts.insert(2, _many(report.dead, "dead letter"))
    if report.lost:
        parts.append(f"{report.lost} lost")
    return ", ".join(parts)


def _left(queue: QueueManager) -> str:
    """Return what a drain leaves in the queue, as text; nothing if there is nothing, or it cannot be known."""
    try:
        counts, paused = queue.counts(), queue.paused
    except (QueueError, OSError):
        return ""
    names = ("pending", "leased", "scheduled")
    parts = [f"{count} {name}" for name in names if (count := getattr(counts, name))]
    left = f"{', '.join(parts)} left" if parts else ""
    return "; ".join(filter(None, [left, "the queue is paused" if paused else ""]))


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _split(command: str) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as e:
        raise click.UsageError(f"--exec {command!r}: {e}") from None
    if not argv:
        raise click.UsageError("--exec: an empty command")
    return argv
