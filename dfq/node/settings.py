"""Findings about the settings: what they are and where each came from."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

from dfq.config import Backoff, Settings, default_root, resolve
from dfq.errors import ConfigError
from dfq.node.finding import Finding, fail, ok

_CREDENTIALS = re.compile(r"((?:\b[A-Za-z][A-Za-z0-9+.-]*://)?)[^\s'\"]\S*@")
_QUERY = re.compile(r"\?[^\s'\"]*=[^\s'\"]+")


def settings(queue: str | None, root: str | None) -> tuple[str | None, int, list[Finding]]:
    """Return the root (None if there is none to be had), the shards, and what is to be said of the settings."""
    try:
        found, sources = resolve(queue=queue, root=root)
    except ConfigError as e:
        fix = "correct it; the other findings go by the defaults"
        return _root_without_config(root), Settings(root=Path()).shards, [fail("config", masked(str(e)), fix)]
    return os.path.realpath(found.root), found.shards, list(_each(found, sources))


def _each(found: Settings, sources: dict[str, str]) -> Iterator[Finding]:
    for name, source in sources.items():
        yield ok(f"config {name}", f"{_shown(getattr(found, name))} ({source})")


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Backoff):
        return ", ".join(f"{part:g}" for part in dataclasses.astuple(value))
    if isinstance(value, float):
        return f"{value:.15g}"
    return masked(value) if isinstance(value, str) else str(value)


def masked(text: str) -> str:
    """Return a text without what is secret in addresses: user and password, with or without a scheme, and the query."""
    return _QUERY.sub("?***", _CREDENTIALS.sub(r"\1***@", text))


def _root_without_config(root: str | None) -> str | None:
    given = root or os.environ.get("DFQ_ROOT")
    try:
        return os.path.realpath(os.path.expanduser(given) if given else default_root())
    except (ConfigError, ValueError):
        return None
