"""What receipts add up to."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from edgecloud.app.tui.screens.dashboard import engine_table
from edgecloud.app.tui.state.receipt import parse
from edgecloud.app.tui.state.stats import DAY_S, HOUR_S, quantile, summarise
from edgecloud.router.ledger import Ledger
from edgecloud.router.ledger.entries import RequestEntry
from edgecloud.types import CacheInfo

from .test_receipt import make_receipt

NOW = 10 * DAY_S + 15 * HOUR_S
MIDNIGHT = 10 * DAY_S


def test_money_and_tokens_land_in_their_hour_and_day() -> None:
    receipt = make_receipt(cost=0.5, prompt_tokens=100, completion_tokens=20, cached_tokens=50)
    at = (NOW - 60, NOW - 3 * HOUR_S, MIDNIGHT - 1, MIDNIGHT - DAY_S - 1)

    stats = summarise([(when, "ok", receipt) for when in reversed(at)], now=NOW, midnight=MIDNIGHT)

    assert (stats.today.requests, stats.all.requests) == (2, 4)
    assert stats.hourly_tokens[-1] == stats.hourly_tokens[-4] == 120
    assert sum(stats.hourly_tokens) == 3 * 120, "the oldest is longer ago than a day"
    assert stats.daily_cost[-3:] == (0.5, 0.5, 1.0)
    assert stats.today.reused == 0.5


def test_hits_are_counted_among_what_the_cache_was_asked_and_have_no_speed() -> None:
    hit = make_receipt(cache=CacheInfo("exact", age_s=1.0), ttft_s=0.0)
    receipts = [hit, make_receipt(cache=CacheInfo("miss")), make_receipt()]

    sums = summarise([(NOW, "ok", receipt) for receipt in receipts], now=NOW, midnight=MIDNIGHT).today

    assert (sums.hits, sums.asked_cache, len(sums.waits)) == (1, 2, 2)


def test_engines_are_told_apart() -> None:
    receipts = [(NOW, "ok", make_receipt()), (NOW, "ok", replace(make_receipt(), engine="pool"))]

    assert summarise(receipts, now=NOW, midnight=MIDNIGHT).engines.keys() == {"local", "pool"}


def test_quantiles_of_few_values() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5


@pytest.mark.parametrize("seed", range(20))
def test_the_dashboard_counts_as_edgecloud_stats_does(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    entries = [
        RequestEntry(
            make_receipt(
                id=f"req-{number}",
                engine=random.choice(("", "local", "pool")),
                cache=CacheInfo(random.choice(("off", "miss", "exact", "semantic"))),
                prompt_tokens=random.randrange(100),
                cached_tokens=random.randrange(10),
                completion_tokens=random.randrange(3),
                ttft_s=random.random(),
                tokens_per_s=random.choice((0.0, 50 * random.random())),
            ),
            NOW - number,
            "chat",
            None,
            None,
            random.choice(("ok", "ok", "interrupted", "upstream_failed")),
            nano=0,
        )
        for number in range(40)
    ]
    with closing(Ledger(tmp_path / "edgecloud.db")) as ledger:
        for entry in entries:
            ledger.settle(entry, [], ())
        told = {sums.engine: sums for sums in ledger.sums_since(0)}
        rows = [(at, outcome, parse(stored)) for at, outcome, stored in ledger.requests_since(0)]

    shown = summarise(rows, now=NOW, midnight=MIDNIGHT).engines

    assert shown.keys() == told.keys()
    for engine, sums in shown.items():
        stats = told[engine]
        assert (sums.requests, sums.failed, sums.interrupted, sums.hits) == (
            stats.requests, stats.failed, stats.interrupted, stats.cache_hits,
        )  # fmt: skip
        assert (sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens) == (
            stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens,
        )  # fmt: skip
        assert (quantile(sums.waits, 0.5) or 0.0) == pytest.approx(stats.ttft_s)
        assert (quantile(sums.speeds, 0.5) or 0.0) == pytest.approx(stats.tokens_per_s)
        assert sums.cost == pytest.approx(stats.cost)


def test_what_was_stopped_has_not_failed() -> None:
    outcomes = ("ok", "connection_refused", "interrupted")
    requests = [(NOW, outcome, make_receipt()) for outcome in outcomes]
    refused = make_receipt(attempts=(), engine="", completion_tokens=0)

    stats = summarise([*requests, (NOW, "no_route", refused)], now=NOW, midnight=MIDNIGHT)

    assert (stats.today.requests, stats.today.failed, stats.today.interrupted) == (4, 2, 1)
    assert (stats.engines[""].requests, stats.engines[""].failed) == (1, 1)


def test_the_dashboard_has_a_column_for_what_was_stopped_where_anything_was() -> None:
    def names(*outcomes: str) -> list[str]:
        requests = [(NOW, outcome, make_receipt()) for outcome in outcomes]
        stats = summarise(requests, now=NOW, midnight=MIDNIGHT)
        return [cell.plain for cell in engine_table(stats.engines, "USD").header][:3]

    assert names("ok") == ["engine", "requests", "in"]
    assert names("ok", "interrupted") == ["engine", "requests", "stopped"]
    assert names("ok", "upstream_failed") == ["engine", "requests", "failed"]


def test_the_dashboards_table_leaves_columns_out_before_it_breaks_a_word() -> None:
    requests = [(NOW, outcome, make_receipt()) for outcome in ("ok", "interrupted", "upstream_failed")]
    refused = make_receipt(attempts=(), engine="", completion_tokens=0)
    engines = summarise([*requests, (NOW, "no_route", refused)], now=NOW, midnight=MIDNIGHT).engines
    whole = engine_table(engines, "USD")

    narrow = engine_table(engines, "USD", 60)

    assert len(narrow.header) < len(whole.header) == len(engine_table(engines, "USD", 200).header)
    assert narrow.fits(60)
    assert not whole.fits(60)
    assert {"engine", "requests", "tokens/s", "price"} <= {cell.plain for cell in narrow.header}
    assert len(engine_table(engines, "USD", 20).header) == len(whole.header)


def test_who_was_not_asked_comes_last_and_was_not_measured() -> None:
    refused = make_receipt(attempts=(), engine="", completion_tokens=0)
    engines = summarise(
        [(NOW, "no_route", refused), (NOW, "ok", make_receipt())], now=NOW, midnight=MIDNIGHT
    ).engines

    table = engine_table(engines, "USD")

    names, speeds = zip(*((row[0].plain, row[-3].plain) for row in table.rows), strict=True)
    assert names[-1] == "nobody asked"
    assert (speeds[0] != "–", speeds[-1]) == (True, "–")
