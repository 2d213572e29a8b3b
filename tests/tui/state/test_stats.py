"""What receipts add up to."""

from __future__ import annotations

from dataclasses import replace

from edgecloud.app.tui.state.stats import DAY_S, HOUR_S, quantile, summarise
from edgecloud.types import Attempt, CacheInfo

from .test_receipt import make_receipt

NOW = 10 * DAY_S + 15 * HOUR_S
MIDNIGHT = 10 * DAY_S


def test_money_and_tokens_land_in_their_hour_and_day() -> None:
    receipt = make_receipt(cost=0.5, prompt_tokens=100, completion_tokens=20, cached_tokens=50)
    at = (NOW - 60, NOW - 3 * HOUR_S, MIDNIGHT - 1, MIDNIGHT - DAY_S - 1)

    stats = summarise([(when, receipt) for when in reversed(at)], now=NOW, midnight=MIDNIGHT)

    assert (stats.today.answers, stats.all.answers) == (2, 4)
    assert stats.hourly_tokens[-1] == stats.hourly_tokens[-4] == 120
    assert sum(stats.hourly_tokens) == 3 * 120, "the oldest is longer ago than a day"
    assert stats.daily_cost[-3:] == (0.5, 0.5, 1.0)
    assert stats.today.reused == 0.5


def test_hits_are_counted_among_what_the_cache_was_asked_and_have_no_speed() -> None:
    hit = make_receipt(cache=CacheInfo("exact", age_s=1.0), ttft_s=0.0)
    receipts = [hit, make_receipt(cache=CacheInfo("miss")), make_receipt()]

    sums = summarise([(NOW, receipt) for receipt in receipts], now=NOW, midnight=MIDNIGHT).today

    assert (sums.hits, sums.asked_cache, len(sums.waits)) == (1, 2, 2)


def test_engines_are_told_apart() -> None:
    receipts = [(NOW, make_receipt()), (NOW, replace(make_receipt(), engine="pool"))]

    assert summarise(receipts, now=NOW, midnight=MIDNIGHT).engines.keys() == {"local", "pool"}


def test_quantiles_of_few_values() -> None:
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.95) == 3.0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0


def test_what_failed_is_no_answer_and_what_was_stopped_is_one() -> None:
    outcomes = ("ok", "connection_refused", "interrupted")
    receipts = [make_receipt(attempts=(Attempt("local", outcome, 0.1),)) for outcome in outcomes]
    refused = make_receipt(attempts=(), engine="", completion_tokens=0)

    stats = summarise([(NOW, each) for each in (*receipts, refused)], now=NOW, midnight=MIDNIGHT)

    assert (stats.today.answers, stats.today.failed) == (2, 2)
    assert (stats.engines[""].answers, stats.engines[""].failed) == (0, 1)
