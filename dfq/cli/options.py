"""What commands have in common: which queue, and how to open it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dfq.config import Settings
    from dfq.queue import QueueManager

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_QUEUE = "default"


@dataclass
class Where:
    """Which queue is meant; what is said after the command wins over what is said before it."""

    root: str | None = None
    queue: str | None = None

    @property
    def name(self) -> str:
        # DFQ_ROOT is a setting and read where settings are; DFQ_QUEUE only means something here.
        return self.queue or os.environ.get("DFQ_QUEUE") or DEFAULT_QUEUE


def where() -> Where:
    """Return which queue the running command is about."""
    return click.get_current_context().find_root().ensure_object(Where)


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and param.name is not None:
        setattr(ctx.find_root().ensure_object(Where), param.name, value)


def queue_options(command: F) -> F:
    """Add --root and --queue, which may stand before or after the command."""
    root = click.option(
        "--root",
        metavar="DIR",
        expose_value=False,
        callback=_remember,
        help="Where queues are kept.  [env: DFQ_ROOT]",
    )
    queue = click.option(
        "--queue",
        metavar="NAME",
        expose_value=False,
        callback=_remember,
        help=f"Which queue.  [env: DFQ_QUEUE; default: {DEFAULT_QUEUE}]",
    )
    return root(queue(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")

#: A number of seconds that may be zero.
SECONDS = click.FloatRange(min=0)


def open_here(*, create: bool = False, **settings: Any) -> QueueManager:
    """Open the queue that the command is about; it must exist unless `create` is said."""
    from dfq.config import open_queue

    here = where()
    return open_queue(here.name, root=here.root, create=create, **settings)


def path_of(queue: QueueManager) -> str | None:
    """Return the folder of a queue that is made of files."""
    path: str | None = getattr(queue, "where", None)
    return path or None


def settings_here() -> Settings:
    """Return the settings of the queue that the command is about."""
    from dfq.config import resolve

    here = where()
    settings, _ = resolve(queue=here.name, root=here.root)
    return settings
