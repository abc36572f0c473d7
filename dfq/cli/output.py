"""How things are shown: tables for people, tab-separated lines and JSON for programs."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.table import Table

NOTHING_TO_DO = 3
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


def nothing(message: str) -> NoReturn:
    """Say that there was nothing to do and end with the exit status for it."""
    say(message)
    raise click.exceptions.Exit(NOTHING_TO_DO)


def on_terminal() -> bool:
    """Tell whether a person reads stdout."""
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    # ASCII only: whatever the ids and payloads hold, the line can be shown and piped anywhere.
    click.echo(json.dumps(value, default=str))


def encoded(value: Any) -> tuple[Any, str]:
    """Return a payload or result as (a JSON value, its encoding), whatever its size."""
    from dfq.codec import encode_result

    return encode_result(value, sys.maxsize)


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
    from rich.console import Console

    Console().print(table_of(headings, rows, numbers=numbers, total=total, styles=styles))


def print_line(row: Sequence[object]) -> None:
    """Print one row as a tab-separated line."""
    click.echo("\t".join(_cell(value) for value in row))


def table_of(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    total: Sequence[object] | None = None,
    styles: Mapping[str, str] | None = None,
) -> Table:
    """Return rows as a table for a terminal (see print_rows)."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in numbers else "left")
    for row in rows:
        first, *others = (Text(_cell(value)) for value in row)  # Text: an id with [brackets] is not markup
        first.stylize((styles or {}).get(first.plain, ""))
        table.add_row(first, *others)
    if total is not None:
        table.add_row(*(Text(_cell(value), style="bold") for value in total))
    return table


def _cell(value: object) -> str:
    return printable(str(value)) if value is not None and value != "" else "-"


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line."""
    if not on_terminal():
        for name, value in _shown(fields):
            click.echo(f"{name}\t{value}")
        return
    from rich.console import Console

    Console().print(fields_of(fields))


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


def seconds(value: float | None) -> str | None:
    """Return a time span as a person would say it."""
    if value is None:
        return None
    sign, value = ("-" if value < 0 else ""), abs(value)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= 2 * size:
            return f"{sign}{value / size:.0f} {unit}"
    return f"{sign}{value:.0f} s"
