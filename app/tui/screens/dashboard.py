"""Money, tokens, speed and hits: what the receipts of the last days add up to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual_plotext import PlotextPlot

from edgecloud.errors import EdgeCloudError
from edgecloud.settings import BudgetSettings

from ...tally import NOBODY, first_of
from ..keys import bound, keys_of
from ..ports import Gateway, Store
from ..render.table import Table
from ..state.receipt import money, seconds
from ..state.stats import Stats, Sums, quantile, summarise
from ..state.ticks import ago, round_amount, round_marks, short
from ..widgets.flow import Flow
from ..widgets.label import Label, plain

DAYS = 7
REFRESH_S = 5.0

NARROW = 100
"""Columns below which the plots stand below each other."""

DISPENSABLE = ("p95", "stopped", "hits", "failed", "in", "wait p50")
"""What the table does without, in this order, where there is no room for it."""


class DashboardScreen(Screen[None]):
    """Reads the receipts again every few seconds."""

    HELP = "## Dashboard\n\nThe last seven days. **{dashboard.close}** goes back to the chat."

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("dashboard.close", "dismiss(None)", "back"),
        bound("chat.interrupt", "dismiss(None)"),
    ]

    def __init__(self, gateway: Gateway, store: Store, budget: BudgetSettings) -> None:
        super().__init__()
        self.gateway = gateway
        self.store = store
        self.budget = budget
        self._stats: Stats | None = None

    def compose(self) -> ComposeResult:
        yield Label("the last seven days", classes="heading")
        with VerticalScroll():
            yield Label("", id="today")
            yield Label("", id="now")
            yield Flow(classes="engines")
            with Horizontal(classes="plots"):
                with Vertical():
                    yield Label("tokens an hour")
                    yield PlotextPlot(id="tokens")
                with Vertical():
                    yield Label(f"money a day, in {self.budget.currency}")
                    yield PlotextPlot(id="money")
                with Vertical():
                    yield Label("time to the first word, by answer")
                    yield PlotextPlot(id="waits")
        yield Label(keys_of(self).fill("{dashboard.close} goes back"), classes="hint")

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < NARROW, "-narrow")
        if self._stats is not None:
            self.call_after_refresh(self.show, self._stats)

    def on_mount(self) -> None:
        self.fill()
        self.set_interval(REFRESH_S, self.fill)

    @work(exclusive=True)
    async def fill(self) -> None:
        """Read and show."""
        now = time.time()
        midnight = time.mktime((*time.localtime(now)[:3], 0, 0, 0, 0, 0, -1))
        try:
            requests = await self.store.requests_since(first_of(DAYS))
        except EdgeCloudError as error:
            self.query_one("#today", Label).show(error.message)
            return
        self.show(summarise(requests, now=now, midnight=midnight, days=DAYS))
        self.query_one("#now", Label).show(await self._now())

    def show(self, stats: Stats) -> None:
        """Show the sums as text, table and plots."""
        self._stats = stats
        self.query_one("#today", Label).show(today_line(stats.today, self.budget))
        engines = self.query_one(".engines", Flow)
        engines.show([engine_table(stats.engines, self.budget.currency, engines.size.width)])
        self._plot("#tokens", stats.hourly_tokens, short, "h", "now", (20, 10, 0))
        self._plot("#money", stats.daily_cost, self._price, "d", "today", (6, 3, 0))
        middle = len(stats.waits) // 2
        self._plot("#waits", stats.waits, seconds, "", "last", (middle + middle // 2, middle // 2, 0))

    def _price(self, cost: float) -> str:
        return round_amount(money(cost, self.budget.currency))

    def _plot(
        self,
        id: str,
        values: Sequence[float],
        name: Callable[[float], str],
        unit: str,
        latest: str,
        marked: tuple[int, ...],
    ) -> None:
        """Draw a series that ends now, a place an hour, a day or an answer; `marked` are places ago."""
        widget = self.query_one(id, PlotextPlot)
        widget.plt.clear_data()
        places = list(range(1 - len(values), 1))
        if places and id == "#waits":
            widget.plt.plot(places, list(values), marker="braille")
        elif places:
            widget.plt.bar(places, list(values), marker="sd", width=0.4)
        marks = round_marks(max(values, default=0))
        widget.plt.ylim(0, marks[-1] or 1)
        widget.plt.yticks(marks, [name(mark) if mark else "0" for mark in marks])
        shown = sorted({place for place in marked if 0 <= place < max(1, len(values))}, reverse=True)
        widget.plt.xticks([-place for place in shown], ago(unit, latest, *shown))
        widget.refresh()

    async def _now(self) -> str:
        try:
            health = await self.gateway.health()
        except EdgeCloudError as error:
            return error.message
        kv = [
            f"{use.model}: {use.used * 100 // max(1, use.cells)} % of its context memory" for use in health.kv
        ]
        return " · ".join([f"now {health.running} running, {health.waiting} waiting", *kv])


def today_line(today: Sums, budget: BudgetSettings) -> str:
    """What today took, against what it may take."""
    spent = money(today.cost, budget.currency)
    limit = f" of {money(budget.per_day, budget.currency)}" if budget.per_day is not None else ""
    ends = (f", {today.failed:,} failed" if today.failed else "") + (
        f", {today.interrupted:,} stopped" if today.interrupted else ""
    )
    return (
        f"today {spent}{limit} · {today.requests:,} requests{ends} · {today.prompt_tokens:,} tokens in, "
        f"{today.completion_tokens:,} out · {today.reused:.0%} of the prompts reused"
    )


def engine_table(engines: dict[str, Sums], currency: str, width: int = 0) -> Table:
    """A row an engine; what failed or was stopped has a column where there is any. Columns are left out where
    `width` cells (0: any number) have room for the others only; where they have none for those either,
    nothing is, since each engine is a list then.
    """
    columns: dict[str, Callable[[Sums], str]] = {"requests": lambda sums: f"{sums.requests:,}"}
    if any(sums.failed for sums in engines.values()):
        columns["failed"] = lambda sums: f"{sums.failed:,}"
    if any(sums.interrupted for sums in engines.values()):
        columns["stopped"] = lambda sums: f"{sums.interrupted:,}"
    columns |= {
        "in": lambda sums: f"{sums.prompt_tokens:,}",
        "out": lambda sums: f"{sums.completion_tokens:,}",
        "wait p50": lambda sums: _seconds(quantile(sums.waits, 0.5)),
        "p95": lambda sums: _seconds(quantile(sums.waits, 0.95)),
        "tokens/s": lambda sums: f"{quantile(sums.speeds, 0.5):.0f}" if sums.speeds else "–",
        "hits": lambda sums: f"{sums.hits / sums.asked_cache:.0%}" if sums.asked_cache else "–",
        "price": lambda sums: money(sums.cost, currency),
    }
    for number in range(len(DISPENSABLE) + 1):
        kept = {head: cell for head, cell in columns.items() if head not in DISPENSABLE[:number]}
        table = _table(engines, kept)
        if not width or table.fits(width):
            return table
    return _table(engines, columns)


def _table(engines: dict[str, Sums], columns: dict[str, Callable[[Sums], str]]) -> Table:
    # Who was not asked comes last, and has no name to sort by.
    by_name = sorted(engines.items(), key=lambda item: (not item[0], item[0]))
    rows = [
        (plain(name or NOBODY), *(Content(cell(sums)) for cell in columns.values())) for name, sums in by_name
    ]
    aligns = ["left", *["right"] * len(columns)]
    header = [Content.styled(name, "bold") for name in ("engine", *columns)]
    return Table(header, rows, aligns)  # type: ignore[arg-type]


def _seconds(value: float | None) -> str:
    return "–" if value is None else seconds(value)
