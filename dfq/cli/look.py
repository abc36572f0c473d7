"""Commands that look at tasks and change nothing: ls, show, leases, stalled."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

import click

from dfq.cli.options import json_option, open_here, queue_options, where
from dfq.cli.output import (
    as_text,
    encoded,
    moment,
    nothing,
    on_terminal,
    print_fields,
    print_json,
    print_rows,
    say,
    seconds,
)
from dfq.codec import parse_iso
from dfq.queue import STATES, State, TaskInfo

TERMINAL_ROWS = 100  # of `dfq ls` on a terminal, unless --limit says otherwise


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
        ("host", info.host),
        ("token", info.token),
        ("claimed", moment(info.claimed_at)),
        ("expires in", seconds(info.expires_in)),
        ("stalled", info.stalled),
        ("silent since", moment(info.silent_since)),
        ("outlook", info.outlook),
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
    """Show who works on what, since when, for how long the lease is good, and what is wrong with it if it is stalled.

    Piped, a line is: id, worker, attempt, claimed, seconds since then, seconds left, why it is stalled.
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
        ("id", "worker", "attempt", "claimed", "for", "expires in", "stalled"),
        ((i.id, i.worker_id, i.attempt, i.claimed_at, span(_age(i, now)), span(i.expires_in), i.stalled) for i in held),
    )


@click.command(short_help="Show the leases whose holder shows no life.")
@queue_options
@json_option
def stalled(as_json: bool) -> None:
    """Show the leases whose holder shows no life, why one thinks so, and what will happen. It changes nothing.

    \b
    holder dead   the kernel says that nobody holds the lease: its process ended, or let go of the task
    other boot    it is of this machine, from before it was last started
    expired       its time has run out
    no heartbeat  over 0.8 of its time has passed without a renewal, which is due at a third
    unreadable    the file is empty or damaged

    The lease of another machine goes by the times that it wrote, so a clock that is wrong shows here; workers wait
    until they have seen it unchanged for all of its time. A lease of `dfq claim` is only stalled once it has run out.

    Piped, a line is: id, worker, host, attempt, the last sign of life, why, what will happen. Exit status 3 if
    nothing is stalled.
    """
    with open_here() as queue:
        found = sorted(
            (info for info in queue.tasks("leased") if info.stalled),
            key=lambda info: (info.silent_since or "", info.id),
        )
        paused = queue.paused
    if not found:
        nothing("nothing is stalled")
    if as_json:
        for info in found:
            print_json(as_object(info))
    else:
        print_rows(
            ("id", "worker", "host", "attempt", "silent since", "why", "what will happen"),
            ((i.id, i.worker_id, i.host, i.attempt, i.silent_since, i.stalled, i.outlook) for i in found),
        )
    if paused:
        say("the queue is paused: nothing is taken over until `dfq resume`")


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
