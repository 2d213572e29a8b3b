"""Faults by whose they are, engines as the router sees them, and what outlives a process."""

from __future__ import annotations

from random import Random

import pytest

from edgecloud.app.facts import estimated_tokens, facts_of, measured, needs_of
from edgecloud.app.faults import fault_of
from edgecloud.app.upstreams import UNKNOWN_CONTEXT, Deployment, Upstream, remote_upstream
from edgecloud.app.warmth import Warmth, session_of
from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    EngineFailure,
    NotSupported,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
    UpstreamError,
)
from edgecloud.router.facts import Privacy
from edgecloud.router.ledger import AnswerEntry
from edgecloud.settings import BudgetSettings, PoolEntry
from edgecloud.types import ChatRequest, Constraint, Message, NamedTool, Timings, Tool, Usage
from tests.support.fake_engine import FakeEngine


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def big(clock: Time | None = None, num_addresses: int = 2, **fields: object) -> Upstream:
    entry = PoolEntry(**{"name": "big", "url": "http://a:8000/v1", "model": "big-70b", **fields})
    deployments = [Deployment(f"host-{number}", FakeEngine()) for number in range(num_addresses)]
    budget = BudgetSettings(rates={"EUR": 1.1})
    return remote_upstream(entry, deployments, budget, clock or Time())


def fail_all(upstream: Upstream, pause_s: float | None = None) -> None:
    while (turn := upstream.admit(10, Random(1))) is not None:
        upstream.failed(turn, "it is down", pause_s)


@pytest.mark.parametrize(
    ("error", "kind", "elsewhere"),
    [
        (BadRequest("The upstream refused the request."), "request", False),
        (ContextLengthExceeded(9, 5), "capability", True),
        (BadRequest("too long", code="context_length_exceeded"), "capability", True),
        (NotSupported("no images"), "capability", True),
        (PayloadTooLarge("too large"), "capability", True),
        (DeadlineExceeded("late"), "deadline", False),
        (UpstreamError("no", upstream_status=401), "credential", True),
        (UpstreamError("no", upstream_status=402), "credential", True),
        (UpstreamError("no such model", upstream_status=404), "credential", True),
        (BadRequest("Your account is not active, please check your billing details"), "credential", True),
        (Overloaded("busy", retry_after=3), "deployment", True),
        (Unavailable("loading"), "deployment", True),
        (UpstreamError("status 500: oh", upstream_status=500), "deployment", True),
        (UpstreamError("status 500: invalid parameter 'x'", upstream_status=500), "request", False),
        (UpstreamError("refused the connection"), "deployment", True),
        (EngineFailure("a step failed"), "deployment", True),
    ],
)
def test_an_error_is_somebodys_fault(error: EdgeCloudError, kind: str, elsewhere: bool) -> None:
    fault = fault_of(error)
    assert (fault.kind, fault.elsewhere) == (kind, elsewhere)
    assert fault.cools == (kind in ("credential", "deployment"))


def test_retry_after_is_how_long_it_is_left_alone() -> None:
    assert fault_of(Overloaded("busy", retry_after=3)).pause_s == 3


def test_one_working_address_is_a_working_engine() -> None:
    upstream = big()
    turn = upstream.admit(10, Random(1))
    assert turn is not None
    upstream.failed(turn, "it is down", 60.0)
    assert upstream.view(0.0).breaker.state == "closed"


def test_when_all_rest_the_view_says_since_what_and_until_when() -> None:
    clock = Time()
    upstream = big(clock)
    fail_all(upstream, 60.0)
    breaker = upstream.view(5000.0).breaker
    assert (breaker.state, breaker.reopens_at, breaker.reason) == ("open", 5060.0, "it is down")
    clock.now += 60
    breaker = upstream.view(5060.0).breaker
    assert (breaker.state, breaker.probe) == ("half-open", True)


def test_prices_are_billed_in_the_currency_of_the_budget() -> None:
    upstream = big(price_in=1.0, price_out=2.0, currency="EUR")
    assert upstream.view(0.0).price.completion == 2.0
    assert upstream.billed.completion == pytest.approx(2.2)
    assert upstream.billed.cached == upstream.billed.prompt
    assert (upstream.kind, big().kind) == ("hosted", "pool")


def test_what_an_entry_lacks_and_what_it_says_of_its_context() -> None:
    upstream = big(lacks=("images", "tools"), context=8000)
    can = upstream.view(0.0).capabilities
    assert (can.images, can.tools, can.json, can.context) == (False, False, True, 8000)
    upstream.learn_context(99)
    assert upstream.capabilities.context == 8000, "the config goes before"
    unknown = big()
    assert unknown.capabilities.context == UNKNOWN_CONTEXT
    unknown.learn_context(4096)
    assert unknown.view(0.0).capabilities.context == 4096
    assert not big(price_out=1.0).capabilities.continue_final
    assert big(price_out=1.0, continues=True).capabilities.continue_final


def test_a_size_is_taken_from_whoever_tells_it_first_and_kept_for_the_same_model() -> None:
    old = big()
    old.learn_size(0)
    assert old.view(0.0).parameters is None
    old.learn_size(8_030_000_000)
    old.learn_size(1)
    assert old.view(0.0).parameters == pytest.approx(8.03)

    same, other = big(), big(model="another")
    same.restore(old.state(), age_s=1.0)
    other.restore(old.state(), age_s=1.0)

    assert same.parameters == pytest.approx(8.03)
    assert other.parameters is None


def test_speed_context_and_rest_outlive_the_process_and_nonsense_does_not() -> None:
    clock = Time()
    old = big(clock)
    old.learn_context(4096)
    for _ in range(8):
        old.estimates.learn(Usage(10, 100), Timings(ttft_s=0.5, decode_s=1.0))
    fail_all(old, 60.0)
    new = big(clock)
    new.restore(old.state(), age_s=20.0)
    assert new.estimates.speed == old.estimates.speed
    assert new.capabilities.context == 4096
    assert new.view(0.0).breaker.reopens_at == 40.0
    for nonsense in (None, 7, [], {"speed": 1, "breakers": {"host-0": 3, "x": {}}, "context": "y"}):
        big(clock).restore(nonsense, 0.0)


def test_a_rest_is_of_the_address_and_the_model_that_failed_and_keeps_its_reason() -> None:
    def box(url: str = "http://a:8000/v1", model: str = "m") -> Upstream:
        entry = PoolEntry(name="box", url=url, model=model)
        return remote_upstream(entry, [Deployment("a:8000", FakeEngine(), url=url)], BudgetSettings(), Time())

    old, same, moved, renamed = box(), box(), box("http://a:8000/v2"), box(model="n")
    fail_all(old, 60.0)
    for upstream in (same, moved, renamed):
        upstream.restore(old.state(), age_s=0.0)

    assert not same.is_ready()
    assert same.view(0.0).breaker.reason == "it is down"
    assert moved.is_ready()
    assert renamed.is_ready()


def test_a_conversation_is_known_by_its_chat_or_by_how_it_began() -> None:
    first = (Message("system", "s"), Message("user", "one"))
    later = (*first, Message("assistant", "two"), Message("user", "three"))
    assert session_of(ChatRequest(messages=first)) == session_of(ChatRequest(messages=later))
    assert session_of(ChatRequest(messages=first, chat_id="chat-1")) == "chat-1"
    assert session_of(ChatRequest(messages=first, tenant="a")) != session_of(ChatRequest(messages=first))
    assert session_of(ChatRequest(prompt="x")) is None


def test_warmth_is_what_an_engine_computed_last_and_never_more_than_the_prompt() -> None:
    warmth = Warmth()
    warmth.note("chat-1", "big", 500)
    assert [warmth.tokens(session, "big", 900) for session in ("chat-1", "chat-2", None)] == [500, 0, 0]
    assert warmth.tokens("chat-1", "big", 100) == 100
    assert warmth.tokens("chat-1", "small", 100) == 0
    for number in range(3000):
        warmth.note(f"chat-{number + 10}", "big", 1)
    assert warmth.tokens("chat-1", "big", 100) == 0, "forgotten"


def test_facts_hold_what_is_needed_and_no_text() -> None:
    request = ChatRequest(
        messages=(Message("user", "a secret question " * 50, images=("data:,x",)),),
        tools=(Tool("look", "looks"),),
        tool_choice=NamedTool("look"),
        constraint=Constraint("json"),
        max_tokens=9,
        n=2,
    )
    facts = measured(facts_of(request, [], Privacy(), covers=None, left_s=5.0), request)
    assert "secret" not in repr(facts)
    assert facts.structure.num_words == 150
    assert facts.words
    assert (facts.max_tokens, facts.num_choices, facts.deadline_s) == (9, 2, 5.0)
    assert facts.output_tokens.p90 == 9.0
    assert (facts.needs.tools, facts.needs.json, facts.needs.images) == (True, True, True)
    assert not needs_of(ChatRequest(prompt="x", tools=request.tools, tool_choice="none")).tools
    assert 200 <= estimated_tokens(request) <= 300


def test_answers_of_the_past_tell_the_speed_of_the_model_that_gave_them() -> None:
    upstream = big()
    past = [AnswerEntry(model, Usage(100, 50), 0.4, 100.0) for model in ("another", upstream.model)]
    upstream.learn_from(past)
    assert upstream.estimates.num_seen == 1
    upstream.learn_from(past * 4)
    assert upstream.estimates.decode_rate.p50 == pytest.approx(100.0)
