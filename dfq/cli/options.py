"""What commands have in common: which queue, and how to open it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dfq.config import Settings
    from dfq.queue import QueueManager

    FloatParam = click.ParamType[float]
else:
    FloatParam = click.ParamType  # older versions of click do not take it with [float]

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_QUEUE = "default"


class Where:
    """Which queue is meant; what is said after the command wins over what is said before it."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.queue: str | None = None

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
    return place_options(
        "Where queues are kept.  [env: DFQ_ROOT]", f"Which queue.  [env: DFQ_QUEUE; default: {DEFAULT_QUEUE}]"
    )(command)


def place_options(root_help: str, queue_help: str) -> Callable[[F], F]:
    """Add --root and --queue with other words."""

    def add(command: F) -> F:
        for name, metavar, text in (("--queue", "NAME", queue_help), ("--root", "DIR", root_help)):
            command = click.option(name, metavar=metavar, expose_value=False, callback=_remember, help=text)(command)
        return command

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")


class Time(FloatParam):
    """A time from low to high seconds, written as in a setting: 90, 1.5h, '15 m'."""

    name = "time"

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from dfq import values

        try:
            return values.seconds(self.low, self.high)(value)
        except ValueError as e:
            self.fail(f"{value!r}: {e}", param, ctx)


def open_here(*, create: bool = False, **settings: Any) -> QueueManager:
    """Open the queue that the command is about; it must exist unless `create` is said."""
    from dfq.config import open_queue, resolve
    from dfq.errors import ConfigError

    here = where()
    queue = open_queue(here.name, root=here.root, create=create, **settings)
    if queue.queue_type == "memory":
        queue.close()
        _, sources = resolve(queue=here.name, root=here.root)
        raise ConfigError(
            f"queue_type = 'memory' ({sources['queue_type']}): a memory queue lives in one process, so no command can "
            "act on it: use filesystem"
        )
    return queue


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
