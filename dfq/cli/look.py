"""Commands that look at tasks and change nothing: ls, show, leases, stalled."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from typing import Any

import click

from dfq.cli.options import json_option, open_here, path_of, queue_options
from dfq.cli.output import as_text, encoded, nothing, on_terminal, print_fields, print_json, print_rows, say, seconds
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
        shown = itertools.islice(found, limit) if limit else found
        if as_json:
            for info in shown:
                print_json(as_object(info))
            return
        print_rows(
            ("id", "state", "attempt", "created", ""),
            ((i.id, i.state, i.attempt, i.created_at, _detail(i, short=for_person)) for i in shown),
        )
        if for_person and next(found, None) is not None:
            say(f"these are the first {limit}; --limit 0 lists all")


def _detail(info: TaskInfo, short: bool) -> str | None:
    detail = {
        "leased": info.worker_id,
        "scheduled": info.due_at,
        "completed": "cancelled" if info.cancelled else info.completed_at,
        "failed": info.error,
        "pending": info.error,
    }[info.state]
    return f"{detail[:60]}…" if detail and short and len(detail) > 60 else detail


@click.command(short_help="Show all that is known of a task.")
@click.argument("task_id", metavar="ID")
@queue_options
@json_option
def show(task_id: str, as_json: bool) -> None:
    """Show all that is known of a task."""
    with open_here() as queue:
        info = queue.get(task_id)
        if info.path is not None and (folder := path_of(queue)) is not None:
            info = dataclasses.replace(info, path=os.path.join(folder, info.path))
    if as_json:
        print_json(as_object(info))
        return
    rows: list[tuple[str, object]] = [
        ("id", info.id),
        ("state", "cancelled" if info.cancelled else info.state),
        ("attempt", info.attempt),
        ("priority", info.priority),
        ("created", info.created_at),
        ("due", info.due_at),
        ("worker", info.worker_id),
        ("host", info.host),
        ("token", info.token),
        ("claimed", info.claimed_at),
        ("expires in", seconds(info.expires_in)),
        ("stalled", info.stalled),
        ("silent since", info.silent_since),
        ("outlook", info.outlook),
        ("completed", info.completed_at),
        ("payload", as_text(info.payload) if info.payload is not None else None),
        ("result", as_text(info.result) if info.result is not None else None),
        ("error", info.error),
    ]
    for e in info.errors:
        rows.append((f"attempt {e.get('attempt', '?')}", _error_line(e)))
    rows.append(("path", info.path))
    print_fields(rows)


def _error_line(error: dict[str, Any]) -> str:
    return "  ".join(str(error[key]) for key in ("at", "worker_id", "error") if error.get(key) is not None)


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
