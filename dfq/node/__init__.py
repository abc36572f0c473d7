"""What the owner of a node wants to know of it: is it fit for a queue, and if not, what is to be done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dfq.node.board import board
from dfq.node.clock import clocks
from dfq.node.finding import Finding, Level, unknown
from dfq.node.identity import identity
from dfq.node.limits import limits
from dfq.node.probe import Probe
from dfq.node.settings import settings
from dfq.node.storage import storage

__all__ = ["Finding", "Level", "Probe", "examine"]


def examine(*, queue: str | None = None, root: str | None = None, probe: Probe | None = None) -> list[Finding]:
    """Return all that can be found out about this node for a queue. It changes nothing."""
    seen = probe or Probe()
    folder, shards, about_settings = settings(queue, root)
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "node": lambda: identity(seen),
        "clock": lambda: clocks(seen),
        "storage": lambda: storage(seen, folder) if folder else iter([unknown("root", "no setting names one")]),
        "board": lambda: board(seen),
        "limits": lambda: limits(seen, shards),
    }
    found: list[Finding] = []
    for name, check in checks.items():
        found += _whatever_happens(name, check)
    return found + about_settings


def _whatever_happens(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    # A machine that refuses an answer (a container, a strange kernel) must not keep the others from being heard.
    try:
        yield from check()
    except (OSError, ValueError) as e:
        yield unknown(name, f"{e}")
