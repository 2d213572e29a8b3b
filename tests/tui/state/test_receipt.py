"""Receipts in words."""

from __future__ import annotations

import dataclasses
import json

import pytest

from edgecloud.app.tui.state import receipt as words
from edgecloud.types import Attempt, CacheInfo, Receipt


def make_receipt(**fields: object) -> Receipt:
    values: dict[str, object] = {
        "id": "req-1", "engine": "local", "model": "smollm2", "variant": "Q4_0", "mode": "auto",
        "reason": "the default model",
        "attempts": (Attempt("local", "ok", 1.0),), "cache": CacheInfo(), "prompt_tokens": 2010,
        "cached_tokens": 1840,
        "completion_tokens": 52, "queue_s": 0.0, "ttft_s": 0.12, "total_s": 1.5, "tokens_per_s": 97.6,
    }  # fmt: skip
    return Receipt(**{**values, **fields})  # type: ignore[arg-type]


def test_the_line_says_where_how_fast_how_much_and_at_what_price() -> None:
    # cases: TE11
    assert words.line(make_receipt()) == (
        "local · smollm2 · free · first word 120 ms, 98 tokens/s · 2,010 in, 52 out (1,840 reused)"
    )


def test_the_line_of_what_was_refused_counts_nothing() -> None:
    refused = make_receipt(
        model="", prompt_tokens=0, cached_tokens=0, completion_tokens=0, ttft_s=0.0, tokens_per_s=0.0
    )
    stopped = make_receipt(cached_tokens=0, completion_tokens=0, ttft_s=0.0, tokens_per_s=0.0)

    assert words.line(refused) == "local · free"
    assert words.line(stopped) == "local · smollm2 · free · 2,010 in, 0 out"
    assert dict(words.details(stopped))["waited"] == "0 ms in the queue"


def test_a_narrow_line_leaves_out_whole_parts_the_least_important_first() -> None:
    receipt = make_receipt()

    assert (
        words.line(receipt, width=74)
        == "local · smollm2 · free · first word 120 ms, 98 tokens/s · 2,010 in, 52 out"
    )
    assert words.line(receipt, width=62) == "local · smollm2 · free · first word 120 ms · 2,010 in, 52 out"
    assert words.line(receipt, width=30) == "local · smollm2 · free"
    assert words.line(receipt, width=3) == "local · smollm2"


def test_a_hit_is_shown_as_one() -> None:
    hit = make_receipt(cache=CacheInfo("semantic", similarity=0.971, age_s=3 * 86400.0, entry_id="e"))

    assert "from the cache, 3 days old, 0.97 alike" in words.line(hit)


def test_a_reroute_is_in_the_details() -> None:
    rerouted = make_receipt(attempts=(Attempt("pool", "upstream_failed", 0.2), Attempt("local", "ok", 1.0)))

    assert (
        dict(words.details(rerouted))["attempts"]
        == "pool: upstream_failed after 200 ms, local: ok after 1.0 s"
    )
    assert "attempts" not in dict(words.details(make_receipt()))


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (0, "USD", "free"),
        (0.004, "USD", "$0.004"),
        (1.5, "EUR", "€1.50"),
        (3.4e-8, "USD", "$0.000000034"),
        (0.00002, "XYZ", "0.00002 XYZ"),
    ],
)
def test_money_keeps_digits_that_say_something(amount: float, currency: str, text: str) -> None:
    assert words.money(amount, currency) == text


def test_a_stored_receipt_comes_back_whole() -> None:
    receipt = make_receipt(cache=CacheInfo("exact", age_s=5.0, entry_id="e"))

    assert words.parse(json.loads(json.dumps(dataclasses.asdict(receipt)))) == receipt


def test_a_receipt_of_another_version_is_read_as_far_as_it_is_known() -> None:
    receipt = words.parse({"engine": "pool", "new_field": 1, "cache": {"verdict": "miss", "later": 2}})

    assert (receipt.engine, receipt.cache.verdict, receipt.total_s) == ("pool", "miss", 0)
