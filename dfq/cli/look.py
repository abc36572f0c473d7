"""Commands that look and change nothing: status, ls, show, leases."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import click

from dfq.cli.options import json_option, open_here, path_of, queue_options, where
from dfq.cli.output import as_text, encoded, moment, on_terminal, print_fields, print_json, print_rows, say, seconds
from dfq.codec import parse_iso
from dfq.queue import STATES, State, TaskInfo

TERMINAL_ROWS = 100  # of `dfq ls` on a terminal, unless --limit says otherwise


@click.command(short_help="Count the tasks in each state.")
@queue_options
@json_option
def status(as_json: bool) -> None:
    """Count the tasks in each state; tell whether the queue is paused and who works on it."""
    with open_here() as queue:
        counts = dataclasses.asdict(queue.counts())
        workers = sorted({info.worker_id for info in queue.tasks("leased") if info.worker_id})
        paused = queue.paused
        kind, path = queue.queue_type, path_of(queue)
    if as_json:
        print_json(
            {
                "queue": where().name,
                "queue_type": kind,
                "path": path,
                "paused": paused,
                **counts,
                "workers": workers,
            }
        )
        return
    print_fields(
        [
            ("queue", where().name),
            ("path", path or kind),
            ("paused", "yes" if paused else "no"),
            *counts.items(),
            ("workers", len(workers)),
            *(("worker", worker) for worker in workers),
        ]
    )


@click.command(short_help="List tasks.")
@click.argument("state", type=click.Choice(STATES), required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help="At most so many; 0 for all.  [default: all; 100 on a terminal]",
)
@queue_options
@json_option
def ls(state: State | None, limit: int | None, as_json: bool) -> None:
    """List the tasks in STATE, or all of them.

    Piped, a line is: id, state, attempt, created, and what matters in that state (the worker, the error,
    when it is due or was completed), separated by tabs. Control characters are escaped; --json has
    ids as they are.
    """
    for_person = on_terminal() and not as_json
    if limit is None and for_person:
        limit = TERMINAL_ROWS
    with open_here() as queue:
        found = queue.tasks(state, limit=limit + 1 if limit else None)
        first = next(found, None)
        if first is None:
            say(f"no tasks {f'are {state} ' if state else ''}in queue {where().name}")
            return
        shown = itertools.islice(itertools.chain([first], found), limit or None)
        if as_json:
            for info in shown:
                print_json(as_object(info))
            return
        now = time.time()
        print_rows(
            ("id", "state", "attempt", "age", DETAILS[state]),
            (
                (i.id, i.state, i.attempt, _since(i.created_at, now) if for_person else i.created_at, _detail(i))
                for i in shown
            ),
        )
        if for_person and next(found, None) is not None:
            say(f"these are the first {limit}; --limit 0 lists all")


#: What the last column of `dfq ls` tells, by the state that was asked for.
DETAILS: dict[State | None, str] = {
    None: "detail",
    "pending": "last error",
    "leased": "worker",
    "scheduled": "due",
    "completed": "completed",
    "failed": "error",
}


def _detail(info: TaskInfo) -> str | None:
    return {
        "leased": info.worker_id,
        "scheduled": moment(info.due_at),
        "completed": "cancelled" if info.cancelled else moment(info.completed_at),
        "failed": info.error,
        "pending": info.error,
    }[info.state]


def _since(created_at: str | None, now: float) -> str | None:
    created = parse_iso(created_at)
    return None if created is None else seconds(max(0.0, now - created))


@click.command(short_help="Show all that is known of a task.")
@click.argument("task_id", metavar="ID")
@queue_options
@json_option
def show(task_id: str, as_json: bool) -> None:
    """Show all that is known of a task: a completed one keeps its result, not its payload."""
    with open_here() as queue:
        info = queue.get(task_id)
    if as_json:
        print_json(as_object(info))
        return
    ended = "cancelled" if info.cancelled else "expired" if info.expired else None
    rows: list[tuple[str, object]] = [
        ("id", info.id),
        ("state", ended or info.state),
        ("attempt", info.attempt),
        ("priority", info.priority),
        ("created", moment(info.created_at)),
        ("due", moment(info.due_at)),
        ("worker", info.worker_id),
        ("token", info.token),
        ("claimed", moment(info.claimed_at)),
        ("expires in", seconds(info.expires_in)),
        (ended or "completed", moment(info.completed_at)),
        ("payload", as_text(info.payload) if info.payload is not None else None),
        ("result", as_text(info.result) if info.result is not None else None),
        ("error", info.error),
    ]
    for e in info.errors:
        rows.append((f"attempt {e.get('attempt', '?')}", _error_line(e)))
    rows.append(("path", info.path))
    print_fields(rows)


def _error_line(error: dict[str, Any]) -> str:
    at, worker, what = (error.get(key) for key in ("at", "worker_id", "error"))
    shown = (moment(at) if isinstance(at, str) else at, worker, what)
    return "  ".join(str(part) for part in shown if part is not None)


@click.command(short_help="Show who works on what.")
@queue_options
@json_option
def leases(as_json: bool) -> None:
    """Show who works on what, since when and for how long the lease is good.

    Piped, a line is: id, worker, attempt, claimed, seconds since then, seconds left.
    """
    with open_here() as queue:
        held = sorted(queue.tasks("leased"), key=lambda info: info.claimed_at or "")
    now = time.time()
    if as_json:
        for info in held:
            print_json({**as_object(info), "held_for": _age(info, now)})
        return
    span = seconds if on_terminal() else _whole
    print_rows(
        ("id", "worker", "attempt", "claimed", "for", "expires in"),
        ((i.id, i.worker_id, i.attempt, i.claimed_at, span(_age(i, now)), span(i.expires_in)) for i in held),
    )


def _age(info: TaskInfo, now: float) -> float | None:
    claimed = parse_iso(info.claimed_at)
    return None if claimed is None else round(max(0.0, now - claimed), 3)


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def as_object(info: TaskInfo) -> dict[str, Any]:
    """Return a TaskInfo as it is printed with --json."""
    values = {f.name: getattr(info, f.name) for f in dataclasses.fields(info)}
    values["payload"], values["encoding"] = encoded(info.payload)
    values["result"], values["result_encoding"] = encoded(info.result)
    values["errors"] = list(info.errors)
    return values
