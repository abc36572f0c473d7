"""How things are shown: tables for people, tab-separated lines and JSON for programs."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import click

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
    headings: Sequence[str], rows: Iterable[Sequence[object]], styles: Mapping[str, str] | None = None
) -> None:
    """Print rows as a table on a terminal, as tab-separated lines without headings elsewhere.

    An empty field is a dash, so that `cut` and `read` see every column. A style is for a word in the first column.
    """
    cells = ([printable(str(c)) if c is not None and c != "" else "-" for c in row] for row in rows)
    if not on_terminal():
        for row in cells:
            click.echo("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in cells:
        first, *others = (Text(cell) for cell in row)  # Text: an id with [brackets] is not markup
        first.stylize((styles or {}).get(first.plain, ""))
        table.add_row(first, *others)
    Console().print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line."""
    shown = [(name, printable(str(value))) for name, value in fields if value is not None and value != ""]
    if not on_terminal():
        for name, value in shown:
            click.echo(f"{name}\t{value}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in shown:
        table.add_row(Text(name, style="dim"), Text(value))
    Console().print(table)


def seconds(value: float | None) -> str | None:
    """Return a time span as a person would say it."""
    if value is None:
        return None
    sign, value = ("-" if value < 0 else ""), abs(value)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= 2 * size:
            return f"{sign}{value / size:.0f} {unit}"
    return f"{sign}{value:.0f} s"
