"""`edgecloud stats`: requests, tokens, money and speed, by engine and day."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

from edgecloud.units import count, money

from ..tally import NOBODY, first_of
from .shell import State, Whole, print_json, print_table, print_text, room

if TYPE_CHECKING:
    from edgecloud.settings import Settings

    from ...router.ledger import EngineSums, Ledger
    from ...router.world import Budget

Row = tuple[str, ...]

BAR = 32


@click.command()
@click.option("--days", type=Whole(1, 3660), default=30, show_default=True, help="How far back.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.pass_obj
def stats(state: State, days: int, as_json: bool) -> None:
    """Show what was asked of which engine, what it took and what it cost, today and on the days before.

    What you stopped yourself has not failed.
    """
    settings, ledger = state.settings(), state.ledger()
    since = first_of(days)
    totals, daily = ledger.sums_since(since), ledger.sums_since(since, by_day=True)
    budgets = _budgets(settings, ledger)
    if as_json:
        print_json(
            {
                "days": days,
                "currency": settings.budget.currency,
                "engines": [dataclasses.asdict(each) for each in totals],
                "by_day": [dataclasses.asdict(each) for each in daily],
                "budgets": [
                    {"name": each.name, "limit": each.limit, "spent": each.spent, "reserved": each.reserved}
                    for each in budgets
                ],
            }
        )
        return
    if not totals:
        print_text(f"Nothing was asked in the last {days} days.")
        return
    # Who was not asked comes last, and has no name to sort by.
    totals = tuple(sorted(totals, key=lambda each: not each.engine))
    rows, left_out = fitting([HEAD, *(_row(each) for each in totals)], room())
    print_table(rows)
    if left_out:
        print_text(f"No room for: {', '.join(left_out)} (--json has all).")
    print_text("\n".join(["", *plot(daily, settings.budget.currency, room())]))
    for budget in budgets:
        print_text(
            f"{budget.name}: {money(budget.spent)} of {money(budget.limit)} {settings.budget.currency} "
            f"spent, {money(budget.reserved)} reserved"
        )


HEAD = (
    "engine",
    "requests",
    "failed",
    "stopped",
    "hits",
    "tokens in",
    "of it cached",
    "out",
    "cost",
    "first",
    "speed",
)

DISPENSABLE = ("stopped", "of it cached", "hits", "failed", "first", "speed", "cost")
"""What a narrow terminal does without, in this order."""


def _row(sums: EngineSums) -> Row:
    share = sums.cached_tokens / sums.prompt_tokens if sums.prompt_tokens else 0.0
    return (
        sums.engine or NOBODY,
        f"{sums.requests:,}",
        f"{sums.failed:,}",
        f"{sums.interrupted:,}",
        f"{sums.cache_hits:,}",
        f"{sums.prompt_tokens:,}",
        f"{share:.0%}",
        f"{sums.completion_tokens:,}",
        money(sums.cost),
        f"{sums.ttft_s:.2f} s" if sums.ttft_s else "–",
        f"{sums.tokens_per_s:.0f} tokens/s" if sums.tokens_per_s else "–",
    )


def fitting(rows: Sequence[Row], width: int | None) -> tuple[list[Row], list[str]]:
    """The rows with the columns that `width` characters have room for, and the heads of those that are left
    out. Columns without a number but zero go first.
    """
    left_out: list[str] = []
    silent = [head for head, *cells in zip(*rows, strict=True) if not any(map(_says, cells))]
    for head in dict.fromkeys([*(each for each in DISPENSABLE if each in silent), *DISPENSABLE]):
        if width is None or sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True)) - 2 <= width:
            break
        at = rows[0].index(head)
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
        left_out.append(head)
    return list(rows), left_out


def _says(cell: str) -> bool:
    return any(figure in cell for figure in "123456789")


def plot(daily: Sequence[EngineSums], currency: str, width: int | None = None) -> list[str]:
    """One bar a day for its requests, with its tokens and money, in lines of `width` characters if there is
    room for a bar at all.
    """
    days = {day: list(group) for day, group in groupby(daily, key=lambda sums: sums.day)}
    most = max((sum(each.requests for each in of_day) for of_day in days.values()), default=1)
    told = []
    for day, of_day in days.items():
        requests = sum(each.requests for each in of_day)
        tokens = sum(each.prompt_tokens + each.completion_tokens for each in of_day)
        cost = sum(each.cost for each in of_day)
        took = f"{count(requests, 'request')}, {tokens:,} tokens, {money(cost)} {currency}"
        told.append((day, requests / most, took))
    taken = max((len(day) + len(took) + 4 for day, _, took in told), default=0)
    longest = BAR if width is None else min(BAR, max(1, width - taken))
    return [f"{day}  {_bar(share, longest):<{longest}}  {took}" for day, share, took in told]


def _bar(share: float, longest: int) -> str:
    """A bar to an eighth of a character; something that is not nothing always shows."""
    eighths = max(1, round(share * longest * 8))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def _budgets(settings: Settings, ledger: Ledger) -> list[Budget]:
    from ...router.budgets import limits_of

    limits = limits_of(settings.budget, time.time(), chat_id=None, tenant=None)
    views = (limit.view(*sums) for limit, sums in zip(limits, ledger.sums(limits), strict=True))
    return [view for view in views if view is not None]
