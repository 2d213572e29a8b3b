"""`edgecloud route`: where requests would go, where the last ones went, and learning from them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from edgecloud.types import ChatRequest, Message
from edgecloud.units import money

from .group import ListingGroup
from .shell import State, Whole, local_time, print_json, print_table, print_text

AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(cls=ListingGroup, bare="history")
def route() -> None:
    """Explain where requests go, list where they went, and learn from what came of it."""


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
@click.option("-n", "--limit", type=Whole(1), default=20, show_default=True, help="How many.")
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
                local_time(row["created"]),
                row["engine"] or "nobody",
                row["outcome"] if row["cache"] in ("off", "miss") else f"{row['outcome']} ({row['cache']})",
                f"{row['prompt_tokens']} + {row['completion_tokens']} tokens",
                f"{row['total_s']:.1f} s",
                money(row["cost"]),
            )
            for row in rows
        ]
    )


@route.command()
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Learn from a file too: a line is {"prompt": "…", "scores": {"ENGINE": 0.0 to 1.0}}.',
)
@click.option("--undo", is_flag=True, help="Go back to the version before.")
@AS_JSON
@click.pass_obj
def train(state: State, source: Path | None, undo: bool, as_json: bool) -> None:
    """Learn from your verdicts who answers well, and use it if it is proven better.

    It is not installed unless it beats prompt length alone and the installed version on verdicts that it has
    not seen.
    """
    from ..teaching import label_file, train_now

    outcomes = state.outcomes()
    if undo:
        number = outcomes.undo()
        print_json({"version": number}) if as_json else print_text(f"{_version(number)} is used again.")
        return
    if source is not None:
        labelled = asyncio.run(label_file(source, state.settings(), outcomes))
        if not as_json:
            print_text(f"Read {labelled} outcomes.")
    result = train_now(outcomes)
    if as_json:
        print_json(result)
        return
    print_text(f"{_version(result['version'])} is used from now on; `route train --undo` goes back.")
    _print_report(result)


@route.command("eval")
@AS_JSON
@click.pass_obj
def evaluate(state: State, as_json: bool) -> None:
    """Say how well the estimates of quality do on your own verdicts."""
    from ..teaching import eval_now

    result = eval_now(state.outcomes(for_reading=True))
    if as_json:
        print_json(result)
        return
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in result["verdicts"].items())
    print_text(f"Estimates: {result['quality']}. Verdicts: {verdicts or 'none yet'}.")
    if result["report"] is None:
        print_text("There are too few verdicts to tell how good the estimates are: rate more answers.")
    else:
        _print_report(result["report"])


def _print_report(report: dict[str, Any]) -> None:
    print_text(
        f"On {report['num_verdicts']} verdicts of {report['num_chats']} chats, judged unseen "
        "(lower is better):"
    )
    rows = [
        ("trained now", report["loss"]),
        ("installed", report["loss_installed"]),
        ("length", report["loss_length"]),
    ]
    print_table([(name, f"{loss:.4f}") for name, loss in rows])
    print_text(
        f"Ahead of the installed version by {report['ahead_of_installed']:.1f} standard errors, of length by "
        f"{report['ahead_of_length']:.1f}; calibration error {report['ece']:.3f}."
    )


def _version(number: int) -> str:
    return f"Version {number}" if number else "What came with the product"
