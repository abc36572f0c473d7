"""The command line. It is a client of QueueManager like any other.

Each command lives in a module that is imported when it is run, so that `dfq --help` is quick on a Pi.
"""

from __future__ import annotations

import errno
import sys
from importlib import import_module
from typing import Any

import click

import dfq
from dfq.cli.options import queue_options
from dfq.errors import ConfigError, InvalidTask, QueueError, Unsupported

FAILED, USAGE = 1, 2

# heading -> command -> (module, what --help says). The texts are here so that --help imports no command.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Work": {
        "init": ("act", "Create the queue and print where it is."),
        "push": ("push", "Add tasks."),
        "work": ("work", "Run workers."),
    },
    "Look": {
        "status": ("status", "Count the tasks in each state."),
        "ls": ("look", "List tasks."),
        "show": ("look", "Show all that is known of a task."),
        "leases": ("look", "Show who works on what."),
        "stalled": ("look", "Show the leases whose holder shows no life."),
    },
    "Act": {
        "retry": ("act", "Put failed tasks back, with all their attempts."),
        "cancel": ("act", "Take tasks out of the queue."),
        "purge": ("act", "Cancel everything that is not completed."),
        "pause": ("act", "Hand out no more tasks."),
        "resume": ("act", "Hand out tasks again."),
    },
    "Check": {
        "fsck": ("check", "Check the queue's files, and repair them."),
        "doctor": ("check", "Tell whether this node is fit: clock, disk, power, limits, settings."),
        "verify-fs": ("check", "Tell whether a filesystem keeps the promises that a queue needs."),
    },
    "The verbs, for shell scripts": {
        "claim": ("verbs", "Claim tasks and print them as JSON."),
        "ack": ("verbs", "Complete a claimed task."),
        "nack": ("verbs", "Give a claimed task back."),
        "heartbeat": ("verbs", "Renew the lease of a claimed task."),
    },
    "More": {
        "demo": ("demo", "Show it: 200 tasks, four workers, one of them killed."),
        "completion": ("completion", "Print the completion script for a shell."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group that imports a command when it is run, and words every error on one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = getattr(import_module(f"dfq.cli.{module}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QueueError as e:
            from dfq.cli.output import say

            say(str(e))
            # A setting, an id, a payload or a receipt that cannot be is the caller's mistake; the rest is not.
            ctx.exit(USAGE if isinstance(e, ConfigError | InvalidTask | Unsupported) else FAILED)
        except OSError as e:
            if e.errno == errno.EPIPE:  # whoever read our output has gone: click ends quietly
                raise
            from dfq.cli.output import say

            say(": ".join(str(part) for part in (e.filename, e.strerror or e) if part))
            ctx.exit(FAILED)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # An id that the terminal's encoding cannot show is no reason to stop in the middle of a listing.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)


@click.command(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 done, 1 failed, 2 usage, 3 nothing to do.",
)
@queue_options
@click.version_option(dfq.__version__, "-V", "--version", package_name="dfq", prog_name="dfq")
def main() -> None:
    """A lease-based task queue that is just files."""
