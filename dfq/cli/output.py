"""How things are shown: tables for people, tab-separated lines and JSON for programs."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOTHING_TO_DO = 3
MIN_LAST = 20  # characters of a table's last column that are shown, however small the terminal is
_UNPRINTABLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str) -> str:
    """Return a text with control and other unprintable characters escaped, as in \\x1b.

    An id may hold anything; a terminal that obeys it, or a line of output that it breaks in two, must not be.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def _escape(c: str) -> str:
    code = ord(c)
    if c in "\t\n\r":
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}[c]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(message: str) -> None:
    """Say something to the person on stderr: one line, the first of the message."""
    first, *_ = message.splitlines() or [""]
    click.echo("dfq: " + printable(first), err=True)


def echo(text: str) -> None:
    """Print a line of data on stdout."""
    try:
        click.echo(text)
    except OSError as e:
        if e.errno == errno.EPIPE:  # whoever read our output has gone: click ends quietly
            raise
        # What could not be written is tried again when Python ends, unless it has somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(e.errno, e.strerror, "stdout") from None


def nothing(message: str) -> NoReturn:
    """Say that there was nothing to do and end with the exit status for it."""
    say(message)
    raise click.exceptions.Exit(NOTHING_TO_DO)


def on_terminal() -> bool:
    """Tell whether a person reads stdout."""
    return sys.stdout.isatty()


def plain() -> bool:
    """Tell whether NO_COLOR asks for text without escapes."""
    return bool(os.environ.get("NO_COLOR"))


def console(*, stderr: bool = False) -> Console:
    """Return the terminal to print tables on."""
    from rich.console import Console

    # Left to itself, rich sends bold and dim also with NO_COLOR.
    return Console(stderr=stderr, color_system=None if plain() else "auto")


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    # ASCII only: whatever the ids and payloads hold, the line can be shown and piped anywhere.
    try:
        line = json.dumps(value, default=str, allow_nan=False)
    except ValueError:  # NaN, from a file that another program wrote
        line = json.dumps(_finite(value), default=str, allow_nan=False)
    echo(line)


def _finite(value: Any) -> Any:
    """Return a value with null for each number that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encoded(value: Any) -> tuple[Any, str]:
    """Return a payload or result as (a JSON value, its encoding), whatever its size."""
    from dfq.codec import encode_result
    from dfq.errors import InvalidTask

    try:
        return encode_result(value, sys.maxsize)
    except InvalidTask:  # NaN or half a character, from a file that another program wrote: it is shown as it is there
        return json.dumps(value, default=str), "text"


def as_text(value: Any) -> str:
    """Return a payload or result as one line of text."""
    shown, encoding = encoded(value)
    if encoding == "json":
        return json.dumps(shown, ensure_ascii=False)
    return str(shown) if encoding == "text" else f"base64:{shown}"


def print_rows(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print rows as a table on a terminal, as tab-separated lines without headings elsewhere.

    An empty field is a dash, so that `cut` and `read` see every column. The columns of `numbers` are set to the
    right, `total` is a last row, a style is for a word in the first column: these are for a terminal only.
    """
    if not on_terminal():
        for row in rows:
            print_line(row)
        return
    # A terminal that is too narrow breaks lines by itself: cropping them would take ids apart.
    console().print(table_of(headings, rows, numbers=numbers, total=total, styles=styles), crop=False)


def print_line(row: Sequence[object]) -> None:
    """Print one row as a tab-separated line."""
    echo("\t".join(_cell(value) for value in row))


def table_of(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
    styles: Mapping[str, str] | None = None,
) -> Table:
    """Return rows as a table for a terminal (see print_rows): one line each, of which the last column may be cut."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(value) for value in row] for row in (*rows, *([total] if total is not None else []))]
    widths = [max(map(cell_len, column)) for column in zip(headings, *cells, strict=True)]
    screen, gaps = console().width, 2 * (len(widths) - 1)
    widths[-1] = min(widths[-1], max(MIN_LAST, screen - sum(widths[:-1]) - gaps))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    if sum(widths) + gaps > screen:
        table.width = sum(widths) + gaps
    for heading in headings:
        table.add_column(heading, no_wrap=True, justify="right" if heading in numbers else "left")
    for n, row in enumerate(cells):
        style = "bold" if total is not None and n == len(cells) - 1 else ""
        texts = [Text(cell, style=style) for cell in row]  # Text: an id with [brackets] is not markup
        texts[-1].truncate(widths[-1], overflow="ellipsis")
        texts[0].stylize((styles or {}).get(texts[0].plain, ""))
        table.add_row(*texts)
    return table


def _cell(value: object) -> str:
    return printable(str(value)) if value is not None and value != "" else "-"


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line."""
    if not on_terminal():
        for name, value in _shown(fields):
            echo(f"{name}\t{value}")
        return
    console().print(fields_of(fields))


def fields_of(fields: Iterable[tuple[str, object]]) -> Table:
    """Return names and values, one a line, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in _shown(fields):
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _shown(fields: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    return [(name, printable(str(value))) for name, value in fields if value is not None and value != ""]


def moment(text: str | None) -> str | None:
    """Return a time that a file has (ISO 8601) as local time to the second on a terminal, as it is elsewhere."""
    from datetime import datetime

    from dfq.codec import parse_iso

    wall = parse_iso(text) if on_terminal() else None
    try:
        return text if wall is None else datetime.fromtimestamp(wall).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # before the year 1, here
        return text


def seconds(value: float | None) -> str | None:
    """Return a time span as a person would say it."""
    if value is None:
        return None
    sign, value = ("-" if value < 0 else ""), abs(value)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= 2 * size:
            return f"{sign}{value / size:.0f} {unit}"
    return f"{sign}{value:.0f} s"
