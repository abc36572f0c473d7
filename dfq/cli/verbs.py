"""The four verbs for shell scripts: claim, ack, nack, heartbeat.

The process that claims ends before the work is done, so such a lease lives by its time alone: nobody
renews it but `dfq heartbeat`, and what ties the commands together is the receipt.
"""

from __future__ import annotations

import json
from typing import Any

import click

from dfq.checks import MAX_DELAY, MAX_LEASE, MAX_WAIT, MIN_LEASE
from dfq.cli.options import Time, json_option, open_here, queue_options, settings_here
from dfq.cli.output import encoded, nothing, print_json
from dfq.errors import PayloadTooLarge, Unsupported


@click.command(short_help="Claim tasks and print them as JSON.")
@click.option("--wait", type=Time(0, MAX_WAIT), default=0, help="How long to wait for a task: 20, 5m.  [default: 0]")
@click.option(
    "--lease",
    type=Time(MIN_LEASE, MAX_LEASE),
    help="How long until it may be given to another: 600, 10m.  [default: the queue's]",
)
@click.option("-n", "count", type=click.IntRange(1, 1000), default=1, help="Up to so many tasks.  [default: 1]")
@click.option("--json", is_flag=True, expose_value=False, help="Print JSON; it always does.")
@queue_options
def claim(wait: float, lease: float | None, count: int) -> None:
    """Claim a task and print it: a JSON object with id, payload, attempt, token and receipt.

    Hand the receipt (or the whole line) to `dfq ack`, `dfq nack` or `dfq heartbeat`. The lease lives by
    time alone: unless it is renewed, the task is given to another once it is over. Exit status 3 if there
    is no task.
    """
    with open_here(auto_heartbeat=False) as queue:
        poll_detached = getattr(queue, "poll_detached", None)
        if poll_detached is None:
            raise Unsupported(f"{queue.queue_type} leases cannot outlive the process: `dfq claim` is not possible")
        tasks = poll_detached(count, wait=wait, lease=lease)
        for task in tasks:
            payload, encoding = encoded(task.payload)
            print_json(
                {
                    "id": task.id,
                    "payload": payload,
                    "encoding": encoding,
                    "attempt": task.attempt,
                    "token": task.token,
                    "receipt": task.receipt,
                }
            )
        paused = not tasks and queue.paused
    if not tasks:
        nothing("the queue is paused; `dfq resume` ends that" if paused else "no task to claim")


def _receipt(ctx: click.Context, param: click.Parameter, value: str) -> str:
    # The whole line that `dfq claim` printed will do: a shell without jq can take nothing out of it.
    if not value.lstrip().startswith("{"):
        return value
    try:
        found = json.loads(value)["receipt"]
    except (ValueError, KeyError, RecursionError) as e:
        raise click.BadParameter("neither a receipt nor a line that `dfq claim` printed") from e
    if not isinstance(found, str):
        raise click.BadParameter("neither a receipt nor a line that `dfq claim` printed")
    return found


receipt_argument = click.argument("receipt", callback=_receipt)


@click.command(short_help="Complete a claimed task.")
@receipt_argument
@click.option("--result", help="The result: JSON, or else taken as text.")
@click.option("--result-from", type=click.File("rb"), metavar="FILE", help="Read the result from a file; - is stdin.")
@queue_options
@json_option
def ack(receipt: str, result: str | None, result_from: Any, as_json: bool) -> None:
    """Complete the task that `dfq claim` gave this RECEIPT for.

    Exit status 1 if the lease was lost meanwhile: then nothing was recorded, and somebody else has the task.
    """
    if result is not None and result_from is not None:
        raise click.UsageError("say --result or --result-from, not both")
    value: Any = None
    if result is not None:
        value = _value(result)
    elif result_from is not None:
        value = _read_result(result_from, settings_here().max_payload)
    with open_here(auto_heartbeat=False) as queue:
        task = queue.resume_lease(receipt)
        queue.ack(task, value)
        if as_json:
            print_json({"id": task.id, "state": "completed"})


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read_result(file: Any, limit: int) -> Any:
    raw: bytes = file.read(limit + 1)
    if len(raw) > limit:
        raise PayloadTooLarge(f"result from {file.name} has over {limit:,} bytes, the limit (max_payload)")
    try:
        return _value(raw.decode())
    except UnicodeDecodeError:
        return raw


@click.command(short_help="Give a claimed task back.")
@receipt_argument
@click.option("--error", help="What went wrong; it is kept with the task.")
@click.option("--delay", type=Time(0, MAX_DELAY), default=0, help="When to hand it out again: 60, 5m.  [default: 0]")
@click.option("--no-count", is_flag=True, help="Do not count this attempt.")
@queue_options
@json_option
def nack(receipt: str, error: str | None, delay: float, no_count: bool, as_json: bool) -> None:
    """Give the task back that `dfq claim` gave this RECEIPT for.

    It is handed out again, or becomes a dead letter once its attempts are used up.
    """
    with open_here(auto_heartbeat=False) as queue:
        task = queue.resume_lease(receipt)
        queue.nack(task, error, delay, count=not no_count)
        if as_json:
            print_json({"id": task.id, "state": queue.get(task.id).state})


@click.command(short_help="Renew the lease of a claimed task.")
@receipt_argument
@click.option("--extend", type=Time(MIN_LEASE, MAX_LEASE), help="From now: 600, 10m.  [default: as it was claimed for]")
@queue_options
@json_option
def heartbeat(receipt: str, extend: float | None, as_json: bool) -> None:
    """Renew the lease that `dfq claim` gave this RECEIPT for. Exit status 1 if it was lost meanwhile."""
    with open_here(auto_heartbeat=False) as queue:
        task = queue.resume_lease(receipt)
        queue.heartbeat(task, extend)
        if as_json:
            info = queue.get(task.id)
            print_json({"id": task.id, "state": info.state, "expires_in": info.expires_in})
