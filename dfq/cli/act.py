"""Commands that act on a queue as a whole or on tasks by id: init, retry, cancel, purge, pause, resume."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import click

from dfq.cli.options import json_option, open_here, path_of, queue_options, where
from dfq.cli.output import echo, nothing, print_json, printable, say
from dfq.errors import TaskNotFound
from dfq.queue import QueueManager


@click.command(short_help="Create the queue and print where it is.")
@click.option("--shards", type=click.IntRange(1, 4096), help="Folders to spread tasks over.  [default: 256]")
@queue_options
@json_option
def init(shards: int | None, as_json: bool) -> None:
    """Create the queue, if it is not there yet, and print where it is.

    Nobody has to: the first push creates it as well. The number of shards can only be chosen here.
    """
    with open_here(create=True, shards=shards) as queue:
        kind, path = queue.queue_type, path_of(queue)
    if as_json:
        print_json({"queue": where().name, "queue_type": kind, "path": path})
    else:
        echo(printable(path or kind))


@click.command(short_help="Put failed tasks back, with all their attempts.")
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@click.option("--all-failed", is_flag=True, help="Every failed task.")
@queue_options
@json_option
def retry(task_ids: tuple[str, ...], all_failed: bool, as_json: bool) -> None:
    """Put failed tasks back, with all their attempts; print their ids."""
    if task_ids and all_failed:
        raise click.UsageError("name the tasks to retry or say --all-failed, not both")
    if not task_ids and not all_failed:
        raise click.UsageError("name the tasks to retry, or say --all-failed")
    with open_here() as queue:
        if all_failed:
            done = queue.retry()
            _print_ids(done, as_json)
            if not done:
                nothing("no task has failed")
        else:
            _one_by_one(queue, queue.retry, task_ids, as_json)


@click.command(short_help="Take tasks out of the queue.")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@queue_options
@json_option
def cancel(task_ids: tuple[str, ...], as_json: bool) -> None:
    """Take tasks that are not completed out of the queue; print their ids.

    A worker that is on one of them is told when it next renews its lease: its result will not count.
    """
    with open_here() as queue:
        _one_by_one(queue, queue.cancel, task_ids, as_json)


def _one_by_one(queue: QueueManager, verb: Callable[[str], list[str]], task_ids: Iterable[str], as_json: bool) -> None:
    """Apply a verb to each task; one that it cannot be applied to is reported and does not stop the others.

    The exit status is 3 if all are there but in no state for it, 1 if one of them is not there at all or if it
    could be applied to some only.
    """
    done, left, unknown = 0, 0, 0
    for task_id in task_ids:
        try:
            ids = verb(task_id)
        except TaskNotFound as e:
            known = _is_there(queue, task_id)
            say(str(e) if known else f"there is no task {task_id!r} in queue {where().name}")
            left, unknown = left + 1, unknown + (not known)
            continue
        _print_ids(ids, as_json)
        done += len(ids)
    if unknown or (done and left):
        raise click.exceptions.Exit(1)
    if not done:
        nothing("nothing was done")


def _is_there(queue: QueueManager, task_id: str) -> bool:
    try:
        queue.get(task_id)
    except TaskNotFound:
        return False
    return True


def _print_ids(ids: Iterable[str], as_json: bool) -> None:
    for task_id in ids:
        if as_json:
            print_json({"id": task_id})
        else:
            echo(printable(task_id))


@click.command(short_help="Cancel everything that is not completed.")
@click.option("--dry-run", is_flag=True, help="Only say how many tasks that would be.")
@click.option("--yes", is_flag=True, help="Do not ask. Nothing is asked off a terminal.")
@queue_options
@json_option
def purge(dry_run: bool, yes: bool, as_json: bool) -> None:
    """Cancel everything that is not completed: pending, leased, scheduled and failed tasks.

    Prints how many tasks that were. Witnesses of completed tasks stay.
    """
    with open_here() as queue:
        counts = queue.counts()
        due = counts.pending + counts.leased + counts.scheduled + counts.failed
        if not dry_run and due and not yes and sys.stdin.isatty():
            click.confirm(f"Cancel {due:,} tasks of queue {where().name}?", abort=True, err=True)
        purged = due if dry_run else queue.purge()
    if as_json:
        print_json({"purged": purged, "dry_run": dry_run})
    else:
        echo(str(purged))
    if not purged:
        nothing("nothing to purge")


@click.command(short_help="Hand out no more tasks.")
@queue_options
def pause() -> None:
    """Hand out no more tasks, to any process, until `dfq resume`. Running tasks go on."""
    with open_here() as queue:
        queue.pause()
    say(f"queue {where().name} is paused; `dfq resume` ends that")


@click.command(short_help="Hand out tasks again.")
@queue_options
def resume() -> None:
    """Hand out tasks again."""
    with open_here() as queue:
        queue.resume()
    say(f"queue {where().name} hands out tasks")
