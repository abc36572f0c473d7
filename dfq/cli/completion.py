"""Shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print the completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  eval "$(dfq completion bash)"               in ~/.bashrc
    zsh:   eval "$(dfq completion zsh)"                in ~/.zshrc
    fish:  dfq completion fish | source                in ~/.config/fish/config.fish
    """
    from dfq.cli import main

    made = get_completion_class(shell)
    assert made is not None  # click knows these three
    click.echo(made(main, {}, "dfq", "_DFQ_COMPLETE").source())
