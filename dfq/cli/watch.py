"""dfq status --watch: look again and again, in place on a terminal, a line at a time elsewhere."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NoReturn

import click

from dfq.cli.groups import COLUMNS
from dfq.cli.options import path_of, where
from dfq.cli.output import fields_of, on_terminal, print_json, print_line, seconds, table_of
from dfq.cli.status import Snapshot, as_object, group_table, snapshot
from dfq.codec import iso, parse_iso
from dfq.queue import QueueManager, TaskInfo

if TYPE_CHECKING:
    from rich.console import RenderableType

MANY = 8  # workers and stalled leases that are shown
MIN_GROUPS = 3  # that are shown, however small the terminal is
OTHER_LINES = 16  # of the display: what is not groups, workers or stalled leases


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast tasks have been completed since the watch began."""

    watched: float
    per_minute: float | None
    left: float | None  # seconds, at this rate


class Watch:
    """Looks at a queue and remembers what it saw first."""

    def __init__(self, queue: QueueManager, prefix: str | None, depth: int) -> None:
        self._queue = queue
        self._prefix = prefix
        self._depth = depth
        self._began: tuple[float, int] | None = None

    def look(self) -> tuple[Snapshot, Pace]:
        """Return what there is to see now, and the pace so far."""
        seen, now = snapshot(self._queue, self._prefix, self._depth), time.monotonic()
        if self._began is None:
            self._began = (now, seen.counts.completed)
        started, completed = self._began
        return seen, pace(now - started, seen.counts.completed - completed, seen.counts.pending + seen.counts.leased)


def pace(watched: float, completed: int, waiting: int) -> Pace:
    """Return the pace at which so many tasks were completed in so many seconds while others wait."""
    if watched <= 0:
        return Pace(0.0, None, 0.0 if waiting == 0 else None)
    rate = max(0, completed) / watched
    left = 0.0 if waiting == 0 else waiting / rate if rate else None
    return Pace(round(watched, 3), round(60 * rate, 2), None if left is None else round(left, 1))


def watch(queue: QueueManager, prefix: str | None, depth: int, interval: float, as_json: bool) -> None:
    """Show a queue every `interval` seconds until Ctrl-C."""
    signal.signal(signal.SIGTERM, _end)  # an end that the display learns of, so that it gives the cursor back
    eye = Watch(queue, prefix, depth)
    try:
        if on_terminal() and not as_json and os.environ.get("TERM") != "dumb":
            _redraw(queue, eye, interval)
        else:
            for seen, speed in _looks(eye, interval):
                _print(queue, prefix, seen, speed, as_json)
    except KeyboardInterrupt:
        return


def _end(number: int, frame: object) -> NoReturn:
    raise click.exceptions.Exit(128 + number)


def _looks(eye: Watch, interval: float) -> Iterator[tuple[Snapshot, Pace]]:
    while True:
        started = time.monotonic()
        yield eye.look()
        took = time.monotonic() - started
        time.sleep(max(interval - took, took))  # however large the queue: looking takes half of the time at most


def _print(queue: QueueManager, prefix: str | None, seen: Snapshot, speed: Pace, as_json: bool) -> None:
    at = iso(time.time())
    if as_json:
        grouped = {} if seen.groups is None else {"by": prefix, "groups": seen.groups.objects()}
        rates = {"watched_s": speed.watched, "per_minute": speed.per_minute, "seconds_left": speed.left}
        print_json({"at": at, **as_object(queue, seen), **rates, **grouped})
    elif seen.groups is not None:
        for name, row in seen.groups.rows():
            print_line((at, name, *row))
    else:
        c = seen.counts
        states = (c.completed, c.leased, len(seen.stalled), c.pending, c.scheduled, c.failed)
        print_line((at, *states, len(seen.workers), speed.per_minute, speed.left))


def _redraw(queue: QueueManager, eye: Watch, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        for seen, speed in _looks(eye, interval):
            live.update(_display(queue, seen, speed, console.size.height), refresh=True)


def _display(queue: QueueManager, seen: Snapshot, speed: Pace, height: int) -> RenderableType:
    from rich.console import Group

    busy = Counter(info.worker_id for info in seen.leased if info.worker_id)
    workers = [(worker, f"{count} leased") for worker, count in sorted(busy.items())]
    rate = None if speed.per_minute is None else f"{speed.per_minute:g} a minute, over {seconds(speed.watched)}"
    stalled = seen.stalled
    parts: list[RenderableType] = [
        fields_of(
            [
                ("queue", where().name + (" (paused)" if seen.paused else "")),
                ("path", path_of(queue) or queue.queue_type),
                *asdict(seen.counts).items(),
                ("stalled", len(stalled)),
                ("rate", rate or "…"),
                ("time left", seconds(speed.left) or "…"),
                ("workers", len(workers)),
                *_some([(f"  {worker}", load) for worker, load in workers]),
            ]
        )
    ]
    if seen.groups is not None:
        used = OTHER_LINES + min(len(workers), MANY) + (min(len(stalled), MANY) + 4 if stalled else 0)
        headings, rows, total = group_table(seen.groups, max(MIN_GROUPS, height - used))
        hidden = len(seen.groups) - len(rows)
        if hidden > 0:
            rows.append([f"(and {hidden:,} more)", *[""] * (len(headings) - 1)])
        parts.append(table_of(headings, rows, numbers=COLUMNS, total=total))
    if stalled:
        now = time.time()
        rows = [[i.id, i.worker_id, _silence(i, now), i.stalled, i.outlook] for i in stalled[:MANY]]
        parts.append(table_of(("stalled", "worker", "silent for", "why", "what will happen"), rows))
    return Group(*parts)


def _silence(info: TaskInfo, now: float) -> str | None:
    since = parse_iso(info.silent_since)
    return None if since is None else seconds(max(0.0, now - since))


def _some(rows: list[tuple[str, object]]) -> list[tuple[str, object]]:
    hidden = len(rows) - MANY
    return [*rows[:MANY], ("", f"and {hidden} more")] if hidden > 0 else list(rows)
