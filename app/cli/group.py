"""A group of commands that, asked for nothing in particular, shows what there is."""

from __future__ import annotations

from typing import Any

import click


class ListingGroup(click.Group):
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
