"""`edgecloud route`: where requests would go, and where the last ones went."""

from __future__ import annotations

import time

import click

from edgecloud.types import ChatRequest, Message

from .shell import State, print_json, print_table

AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group()
def route() -> None:
    """Explain where requests go, and list where they went."""


@route.command()
@click.argument("prompt", nargs=-1, required=True)
@AS_JSON
@click.pass_obj
def explain(state: State, prompt: tuple[str, ...], as_json: bool) -> None:
    """Say who would be asked PROMPT, and why. Nobody is asked."""
    from .why import print_plan

    settings = state.settings()
    request = ChatRequest(
        messages=(Message("user", " ".join(prompt)),), offline=settings.offline, journal=False, door="ask"
    )
    print_plan(state, settings, request, as_json=as_json)


@route.command()
@click.option("-n", "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@AS_JSON
@click.pass_obj
def history(state: State, limit: int, as_json: bool) -> None:
    """List the last requests: who answered, how it ended, what it took and cost."""
    rows = state.ledger().recent(limit)
    if as_json:
        print_json(rows)
        return
    print_table(
        [
            (
                row["id"],
                time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"])),
                row["engine"] or "nobody",
                row["outcome"] if row["cache"] in ("off", "miss") else f"{row['outcome']} ({row['cache']})",
                f"{row['prompt_tokens']} + {row['completion_tokens']} tokens",
                f"{row['total_s']:.1f} s",
                f"{row['cost']:.6f}",
            )
            for row in rows
        ]
    )
