"""Prices and exact sums."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.router.money import NANO, Price, amount, most_prompt_tokens, most_usage, nano
from edgecloud.types import ChatRequest, Message, Tool, ToolCall, Usage

TOKENS = st.integers(0, 10**7)


def test_a_million_tokens_cost_their_price() -> None:
    price = Price(prompt=0.15, cached=0.075, completion=0.6)
    assert price.cost(Usage(1_000_000, 0)) == nano(0.15)
    assert price.cost(Usage(1_000_000, 1_000_000)) == nano(0.75)


# cases: R33
def test_cached_tokens_cost_less_and_are_part_of_the_prompt() -> None:
    price = Price(prompt=3.0, cached=0.3, completion=15.0)
    whole = price.cost(Usage(16_111, 100))
    cached = price.cost(Usage(16_111, 100, cached_tokens=15_872))
    assert whole / cached == pytest.approx(7.14, abs=0.01)
    assert price.cost(Usage(10, 0, cached_tokens=99)) == price.cost(Usage(10, 0, cached_tokens=10))


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_parts_never_cost_less_than_the_whole(a: int, b: int, c: int, d: int) -> None:
    price = Price(0.15, 0.075, 0.6)
    apart = price.cost(Usage(a, b)) + price.cost(Usage(c, d))
    assert 0 <= apart - price.cost(Usage(a + c, b + d)) <= 1


def test_the_most_counts_the_prompt_at_its_dearest() -> None:
    usage = Usage(1000, 100, cached_tokens=500)
    assert Price(1.0, 0.1, 4.0).most(usage) == Price(1.0, 1.0, 4.0).cost(usage)
    assert Price(1.0, 3.0, 4.0).most(usage) == Price(3.0, 3.0, 4.0).cost(usage)


def test_an_exact_price_is_not_rounded_up() -> None:
    assert Price(0.1, 0.1, 0.2).cost(Usage(3, 0)) == 300
    assert Price(0.0001, 0.0, 0.0).cost(Usage(1, 0)) == 1


@given(st.text(max_size=200))
def test_no_tokenizer_that_knows_bytes_makes_more_tokens(text: str) -> None:
    raw = len(text.encode(errors="replace"))
    for request in (ChatRequest(messages=(Message("user", text),)), ChatRequest(prompt=text)):
        assert most_prompt_tokens(request) >= raw + 4


@given(
    st.text(max_size=40),
    st.text(max_size=40),
    st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=4),
)
def test_tools_count_however_a_template_writes_them(
    name: str, description: str, schema: dict[str, str]
) -> None:
    def most(*tools: Tool) -> int:
        return most_prompt_tokens(ChatRequest(messages=(Message("user", "x"),), tools=tools))

    sizes = [
        sum(len(text.encode(errors="replace")) for text in (name, description, written))
        for written in (
            json.dumps(schema, ensure_ascii=False),
            json.dumps(schema),
            json.dumps(schema, indent=4),
        )
    ]
    assert most(Tool(name, description, schema)) - most() >= max(sizes)


def test_everything_that_is_sent_counts() -> None:
    plain = most_prompt_tokens(ChatRequest(messages=(Message("user", "x"),)))
    call = Message("assistant", "x", tool_calls=(ToolCall("1", "look", '{"a": 1}'),), reasoning="because")
    assert most_prompt_tokens(ChatRequest(messages=(call,))) > plain + 10
    tools = (Tool("look", "looks it up", {"type": "object"}),)
    assert most_prompt_tokens(ChatRequest(messages=(Message("user", "x"),), tools=tools)) > plain + 30
    picture = Message("user", "x", images=("data:image/png;base64," + "A" * 100_000,))
    assert plain + 1000 < most_prompt_tokens(ChatRequest(messages=(picture,))) < plain + 5000
    assert most_prompt_tokens(ChatRequest(prompt=(1, 2, 3))) == 67


def test_every_choice_is_paid_for() -> None:
    assert most_usage(ChatRequest(prompt=(1,), n=3), 100).completion_tokens == 300


def test_amounts_go_there_and_back() -> None:
    assert amount(nano(0.1) * 10) == 1.0
    assert nano(1.0) == NANO
