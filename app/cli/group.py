"""Groups of commands: what they say of each, and what one does that is asked for nothing in particular."""

from __future__ import annotations

from typing import Any

import click


class Group(click.Group):
    """Says the whole first sentence of each of its commands, where click cuts it at the terminal's width."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=1000)) for name, command in commands if command]
            )


class ListingGroup(Group):
    """`edgecloud models` is `edgecloud models list`, its options included; `bare` names that command."""

    def __init__(self, *args: Any, bare: str = "list", **kwargs: Any) -> None:
        super().__init__(*args, epilog=f"Without a command: {bare}.", **kwargs)
        self.bare = bare

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names_none = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        # A shell that completes the line wants the commands.
        if names_none and not ctx.resilient_parsing:
            args = [self.bare, *args]
        return super().parse_args(ctx, args)
