"""`edgecloud completion`: the script that a shell loads to complete our commands."""

from __future__ import annotations

import click

from .shell import print_text


@click.command(epilog='For example: eval "$(edgecloud completion bash)" in ~/.bashrc.')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes edgecloud in SHELL."""
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    if completer is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    program = ctx.find_root().info_name or "edgecloud"
    print_text(completer(ctx.find_root().command, {}, program, f"_{program.upper()}_COMPLETE").source())
