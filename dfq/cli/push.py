"""dfq push: one task from the command line, or many from a file of JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import click

from dfq.checks import MAX_DELAY
from dfq.cli.options import Time, json_option, open_here, queue_options, settings_here, where
from dfq.cli.output import console, echo, nothing, on_terminal, plain, print_json, printable, say
from dfq.errors import InvalidTask, PayloadTooLarge, QueueUnavailable, TaskExists, Unsupported
from dfq.queue import IfExists, Push, QueueManager

CHUNK = 1000


@click.command(short_help="Add tasks.")
@click.argument("payload", required=False)
@click.option(
    "--from",
    "source",
    type=click.File("rb"),
    metavar="FILE",
    help="A file with one JSON payload a line; - is stdin.",
)
@click.option("--id", "task_id", help="The task's id.  [default: a new one that sorts by time]")
@click.option("--id-field", metavar="NAME", help="With --from: the field of each payload that is its id.")
@click.option("--priority", type=click.IntRange(0, 9), default=5, help="9 is served first.  [default: 5]")
@click.option("--delay", type=Time(0, MAX_DELAY), default=0, help="Until it is handed out: 90, 5m, 2h.  [default: 0]")
@click.option(
    "--if-exists",
    type=click.Choice(["error", "skip", "rerun"]),
    default="error",
    help="When the id is taken: fail, leave it, or put a finished task back.  [default: error]",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no ids.")
@queue_options
@json_option
def push(
    payload: str | None,
    source: IO[bytes] | None,
    task_id: str | None,
    id_field: str | None,
    priority: int,
    delay: float,
    if_exists: IfExists,
    quiet: bool,
    as_json: bool,
) -> None:
    """Add a task and print its id. PAYLOAD is a JSON object; anything else is taken as text.

    With --from, each line is a JSON object or a JSON string. A line that is neither is reported and the
    rest goes on; the exit status is then 1. It is 3 if there is no line at all.
    """
    if payload is not None and source is not None:
        raise click.UsageError("give a PAYLOAD or --from FILE, not both")
    if payload is None and source is None:
        raise click.UsageError("give a PAYLOAD, or --from FILE")
    if payload == "-":
        raise click.UsageError("to read payloads from stdin, say --from -")
    if source is not None and task_id is not None:
        raise click.UsageError("--id is for one task; with --from, --id-field NAME takes the ids from the payloads")
    if source is None and id_field is not None:
        raise click.UsageError("--id-field goes with --from")
    if source is None:
        assert payload is not None
        value = _payload(payload)
        skipped: list[str] = []
        with open_here(create=True) as queue, _in_words_of_the_command():
            made = queue.push(
                value, id=task_id, priority=priority, delay=delay, if_exists=if_exists, on_skip=skipped.append
            )
        _print_id(made, quiet, as_json)
        if skipped and not quiet:
            say(f"task {made!r} was there already")
        return
    load = Load(source, settings_here().max_payload, id_field, priority, delay)
    # A person at a terminal wants to see how far it is, a program wants the ids.
    try:
        with open_here(create=True) as queue, _progress(source, quiet or as_json) as (advance, shown):
            for made in load.push_to(queue, if_exists, advance):
                _print_id(made, quiet or (shown and on_terminal()), as_json)
    except KeyboardInterrupt:
        say(f"interrupted: {load.told()}")
        raise click.exceptions.Exit(1) from None
    if not (load.pushed or load.skipped or load.bad):
        nothing("nothing to push: there is no line in the input")
    if load.bad or not quiet:
        say(load.told())
    if load.bad:
        raise click.exceptions.Exit(1)


def _payload(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        if text.lstrip().startswith("{"):
            say(f"PAYLOAD looks like JSON but is not ({e}): it is taken as text")
        return text
    return value if isinstance(value, dict) else text


def _print_id(task_id: str, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json({"id": task_id})
    elif not quiet:
        echo(printable(task_id))


@contextlib.contextmanager
def _in_words_of_the_command() -> Iterator[None]:
    """Word what is there already with the options that do something about it."""
    try:
        yield
    except TaskExists as e:
        raise TaskExists(_exists(e), task_id=e.task_id, state=e.state) from None


def _exists(error: TaskExists) -> str:
    if error.task_id is None or error.state is None:
        return str(error)
    there = f"task {error.task_id!r} is already {error.state}: "
    if error.state == "failed":
        return f"{there}`dfq retry {shlex.quote(error.task_id)}` puts it back; --if-exists skip leaves it"
    if error.state == "completed":
        return f"{there}--if-exists skip leaves it, --if-exists rerun runs it again"
    return f"{there}--if-exists skip leaves it"


@dataclass
class Load:
    """A file of payloads on its way into a queue, a thousand at a time: it may be larger than memory."""

    source: IO[bytes]
    max_payload: int
    id_field: str | None
    priority: int
    delay: float
    pushed: int = 0
    skipped: int = 0
    bad: int = 0
    under_way: int = 0  # lines that are being pushed together

    def told(self) -> str:
        """Return how far it has got, in words."""
        parts = [f"{self.pushed:,} pushed to queue {where().name}"]
        if self.skipped:
            parts.append(f"{self.skipped:,} {'was' if self.skipped == 1 else 'were'} there already")
        if self.under_way:
            parts.append(f"of the next {self.under_way:,} some may be")
        bad = f"; {self.bad:,} {'line was' if self.bad == 1 else 'lines were'} not" if self.bad else ""
        return ", ".join(parts) + bad

    def push_to(self, queue: QueueManager, if_exists: IfExists, advance: Callable[[int], None]) -> Iterator[str]:
        """Push everything; yield the ids. Lines that cannot be pushed are reported and counted."""
        chunk: list[tuple[int, Push]] = []
        try:
            for number, line in self._lines(advance):
                try:
                    chunk.append((number, self._parse(line)))
                except (InvalidTask, PayloadTooLarge) as e:
                    self._report(number, str(e))
                if len(chunk) == CHUNK:
                    yield from self._push_chunk(queue, chunk, if_exists)
                    chunk.clear()
            yield from self._push_chunk(queue, chunk, if_exists)
        except QueueUnavailable as e:
            at = f"{self._name}:{chunk[0][0]}: " if chunk else ""
            raise QueueUnavailable(f"{at}{e} ({self.told()})") from e

    def _push_chunk(self, queue: QueueManager, chunk: list[tuple[int, Push]], if_exists: IfExists) -> Iterator[str]:
        if not chunk:
            return
        if self.id_field is None or if_exists == "skip":
            skipped: list[str] = []
            self.under_way = len(chunk)
            ids = queue.push_many([item for _, item in chunk], if_exists=if_exists, on_skip=skipped.append)
            self.under_way = 0
            self.pushed += len(ids) - len(skipped)
            self.skipped += len(skipped)
            yield from ids
            return
        # An id that is taken has to be told with its line, so these go one at a time: slower by a flush each.
        for number, item in chunk:
            self.under_way = 1
            try:
                made = queue.push(
                    item.payload,
                    id=item.id,
                    priority=item.priority,
                    delay=item.delay,
                    if_exists=if_exists,
                )
            except (TaskExists, InvalidTask, PayloadTooLarge, Unsupported) as e:
                self._report(number, _exists(e) if isinstance(e, TaskExists) else str(e))
                self.under_way = 0
                continue
            self.under_way = 0
            self.pushed += 1
            yield made

    def _lines(self, advance: Callable[[int], None]) -> Iterator[tuple[int, bytes]]:
        # A file without line ends must not fill the memory of a Pi.
        limit, number = 2 * self.max_payload, 0
        while line := self.source.readline(limit + 1):
            number += 1
            size = len(line)
            if size > limit and not line.endswith(b"\n"):
                while rest := self.source.readline(limit):
                    size += len(rest)
                    if rest.endswith(b"\n"):
                        break
                self._report(number, f"the line is longer than {limit:,} bytes (2 x max_payload)")
            elif line.strip():
                yield number, line
            advance(size)

    def _parse(self, line: bytes) -> Push:
        from dfq.codec import encode_payload
        from dfq.names import encode

        try:
            value = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError as e:
            raise InvalidTask(f"not UTF-8 at byte {e.start}") from None
        except json.JSONDecodeError as e:
            raise InvalidTask(f"not JSON: {e.msg} at column {e.colno}") from None
        except (ValueError, RecursionError) as e:
            raise InvalidTask(f"not JSON that can be read: {e}") from None
        if not isinstance(value, dict | str):
            raise InvalidTask("a payload is a JSON object or a JSON string")
        # Checked here, one by one, so that a chunk is not refused for one of its lines.
        encode_payload(value, self.max_payload)
        task_id = None
        if self.id_field is not None:
            found = value.get(self.id_field) if isinstance(value, dict) else None
            if isinstance(found, bool) or not isinstance(found, str | int):
                raise InvalidTask(
                    f"field {self.id_field!r} is to be the id: it must be there, as text or a whole number"
                )
            task_id = str(found)
            encode(task_id)
        return Push(value, task_id, self.priority, self.delay)

    def _report(self, number: int, problem: str) -> None:
        self.bad += 1
        say(f"{self._name}:{number}: {problem}")

    @property
    def _name(self) -> str:
        name = getattr(self.source, "name", "-")
        return "stdin" if name in ("<stdin>", "-", 0) else str(name)


@contextlib.contextmanager
def _progress(source: IO[bytes], hidden: bool) -> Iterator[tuple[Callable[[int], None], bool]]:
    if hidden or plain() or not sys.stderr.isatty():
        yield (lambda size: None), False
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    try:
        total = os.fstat(source.fileno()).st_size or None
    except OSError:
        total = None
    columns = (TextColumn("pushing"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=total)
        yield (lambda size: progress.advance(bar, size)), True
