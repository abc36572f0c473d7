"""dfq status: how many tasks are in which state, all together or in groups, once or again and again."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from dfq.cli.groups import COLUMNS, MAX_GROUPS, Groups
from dfq.cli.options import json_option, open_here, path_of, queue_options, where
from dfq.cli.output import nothing, on_terminal, print_fields, print_json, print_line, print_rows, say
from dfq.names import MAX_ID_BYTES
from dfq.queue import Counts, QueueManager, TaskInfo

TERMINAL_GROUPS = 100  # shown on a terminal
MIN_INTERVAL, MAX_INTERVAL = 0.2, 86_400.0
DEFAULT_INTERVAL = "2"


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What a queue (or the part of it that begins with a prefix) looked like at one moment."""

    counts: Counts
    paused: bool
    leased: list[TaskInfo]
    groups: Groups | None

    @property
    def workers(self) -> list[str]:
        return sorted({info.worker_id for info in self.leased if info.worker_id})

    @property
    def stalled(self) -> list[TaskInfo]:
        return [info for info in self.leased if info.stalled]


def snapshot(queue: QueueManager, prefix: str | None, depth: int) -> Snapshot:
    """Look at a queue."""
    leased = [info for info in queue.tasks("leased") if info.id.startswith(prefix or "")]
    if prefix is None:
        return Snapshot(queue.counts(), queue.paused, leased, None)
    groups = Groups(prefix, depth).count(queue.states(prefix))
    done, active, stalled, pending, scheduled, failed = groups.total
    counts = Counts(pending, active + stalled, scheduled, done, failed)
    return Snapshot(counts, queue.paused, leased, groups)


def as_object(queue: QueueManager, seen: Snapshot) -> dict[str, Any]:
    """Return a snapshot as it is printed with --json."""
    return {
        "queue": where().name,
        "queue_type": queue.queue_type,
        "path": path_of(queue),
        "paused": seen.paused,
        **dataclasses.asdict(seen.counts),
        "stalled": len(seen.stalled),
        "workers": seen.workers,
    }


def _prefix(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise click.BadParameter("it is not valid UTF-8") from None
    if size > MAX_ID_BYTES:
        raise click.BadParameter(f"it has {size:,} bytes; no id has more than {MAX_ID_BYTES:,}")
    return value


def _interval(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and value != value:  # not a number: it is in every range
        raise click.BadParameter("it must be a number of seconds")
    return value


@click.command(short_help="Count the tasks in each state.")
@click.option(
    "--by",
    "prefix",
    metavar="PREFIX",
    callback=_prefix,
    help="Count in groups the ids that begin with PREFIX; '' for all.",
)
@click.option(
    "--depth", type=click.IntRange(1, 100), help="Parts of the id after PREFIX that make a group.  [default: 1]"
)
@click.option(
    "--watch",
    "interval",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value=DEFAULT_INTERVAL,
    type=click.FloatRange(MIN_INTERVAL, MAX_INTERVAL),
    callback=_interval,
    help=f"Look again every so many seconds, until Ctrl-C.  [default: {DEFAULT_INTERVAL}]",
)
@queue_options
@json_option
def status(prefix: str | None, depth: int | None, interval: float | None, as_json: bool) -> None:
    """Count the tasks in each state; tell whether the queue is paused, who works on it and how many leases are stalled.

    With --by, ids are taken for paths: `--by ''` counts by what stands before the first slash, `--by 29.5/` what is
    under 29.5/ by the next part, and `--depth 2` by the next two. A group that ends with a slash can be the next
    PREFIX; one that does not is a single task. "active" is leased and alive, "stalled" leased and not (see
    `dfq stalled`). Exit status 3 if no id begins with PREFIX.

    With --watch, there are also the rate of completion since the start and the time that is left at this rate.

    \b
    Piped, a line with --by is: group, done, active, stalled, pending, scheduled, failed.
    Piped, a line of --watch is: time, completed, leased, stalled, pending, scheduled, failed, workers,
    completed per minute, seconds left; with --by also, it is: time, and what a line with --by is.
    """
    if depth is not None and prefix is None:
        raise click.UsageError("--depth goes with --by PREFIX")
    with open_here() as queue:
        if interval is not None:
            from dfq.cli.watch import watch

            watch(queue, prefix, depth or 1, interval, as_json)
        elif prefix is not None:
            _print_groups(Groups(prefix, depth or 1).count(queue.states(prefix)), as_json)
        else:
            _print_status(queue, snapshot(queue, None, 1), as_json)


def _print_status(queue: QueueManager, seen: Snapshot, as_json: bool) -> None:
    if as_json:
        print_json(as_object(queue, seen))
    else:
        print_fields(fields(queue, seen))


def fields(queue: QueueManager, seen: Snapshot) -> list[tuple[str, object]]:
    """Return what a person wants to know of a snapshot, as names and values."""
    workers = seen.workers
    return [
        ("queue", where().name),
        ("path", path_of(queue) or queue.queue_type),
        ("paused", "yes" if seen.paused else "no"),
        *dataclasses.asdict(seen.counts).items(),
        ("stalled", len(seen.stalled)),
        ("workers", len(workers)),
        *(("worker", worker) for worker in workers),
    ]


def _print_groups(groups: Groups, as_json: bool) -> None:
    if not len(groups):
        nothing(f"no task id begins with {groups.prefix!r}" if groups.prefix else "there are no tasks")
    if as_json:
        for group in groups.objects():
            print_json(group)
    elif on_terminal():
        headings, rows, total = group_table(groups, TERMINAL_GROUPS)
        print_rows(headings, rows, numbers=COLUMNS, total=total)
        if len(groups) > TERMINAL_GROUPS:
            say(
                f"these are the first {TERMINAL_GROUPS} of {len(groups):,} groups; a longer PREFIX or a pipe shows more"
            )
    else:
        for name, row in groups.rows():
            print_line((name, *row))
    if any(groups.others):
        say(f"only {MAX_GROUPS:,} groups are told apart; a longer PREFIX or a smaller --depth makes fewer")


def group_table(groups: Groups, limit: int) -> tuple[list[str], list[list[object]], list[object]]:
    """Return the headings, the rows up to a limit, and the total of groups for a person."""
    shown = groups.shown()
    rows: list[list[object]] = [
        ["(others)" if name is None else name, *(row[n] for n in shown)] for name, row in groups.rows()[:limit]
    ]
    headings = ["group", *(COLUMNS[n] for n in shown)]
    return headings, rows, ["total", *(groups.total[n] for n in shown)]
