"""Candidates in their order until one answers: faults, replicas, deadlines, hedges, drafts, continuations."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edgecloud.app.attempt import Attempt
from edgecloud.app.books import Books
from edgecloud.app.continuing import Said
from edgecloud.app.drafting import Drafting
from edgecloud.app.hedging import HedgeBudget
from edgecloud.app.opening import Opening, race
from edgecloud.app.upstreams import Upstream
from edgecloud.errors import (
    BadRequest,
    BudgetExceeded,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    Overloaded,
    Unavailable,
    UpstreamError,
)
from edgecloud.router.decision import Cascade, Estimate
from edgecloud.router.ledger import Ledger
from edgecloud.router.money import Price
from edgecloud.settings import BudgetSettings
from edgecloud.types import Capabilities, ChatRequest, Done, Message, Start, TextDelta, Timings, Usage
from tests.support.fake_engine import FakeEngine
from tests.support.upstreams import Executed, make_upstream

DOWN = UpstreamError("The upstream fell over.")


def ask(text: str = "hi", **fields: object) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text),), **fields)  # type: ignore[arg-type]


def broken(error: EdgeCloudError = DOWN, name: str = "broken") -> FakeEngine:
    return FakeEngine(name=name, refuse=error)


def good(name: str = "good", **fields: object) -> FakeEngine:
    return FakeEngine(name=name, **fields)  # type: ignore[arg-type]


def states(upstream: Upstream) -> list[str]:
    now = upstream._clock()
    return [each.breaker.state(now) for each in upstream.deployments]


# ------------------------------------------------------------------------------------- before the first piece


async def test_the_first_choice_answers_and_nobody_else_is_asked() -> None:
    other = good("other")
    done = await Executed(ask(), make_upstream(good()), make_upstream(other)).go()
    assert (done.text, done.outcomes, done.notices()) == ("Hello, world!", [("good", "ok")], [])
    assert other.requests == []


async def test_the_reason_is_that_of_the_one_who_answers() -> None:
    first = await Executed(ask(), make_upstream(good()), make_upstream(good("other"))).go()
    assert first.run.reason == "the default model"
    second = await Executed(ask(), make_upstream(broken()), make_upstream(good())).go()
    assert second.run.reason == "next in line: The upstream fell over"
    again = await Executed(ask(), make_upstream(broken(), good("broken")), make_upstream(good())).go()
    assert (again.outcomes[-1], again.run.reason) == (("broken", "ok"), "the default model")


# cases: R1 R2
@pytest.mark.parametrize("fail_at", [None, 0])
async def test_a_failure_before_the_first_token_is_one_clean_stream_of_the_next(fail_at: int | None) -> None:
    first = FakeEngine(name="broken", refuse=DOWN if fail_at is None else None, fail_at=fail_at, error=DOWN)
    done = await Executed(ask(), make_upstream(first), make_upstream(good())).go()
    assert [event.engine for event in done.events if isinstance(event, Start)] == ["good"]
    assert done.text == "Hello, world!"
    assert done.outcomes == [("broken", "upstream_failed"), ("good", "ok")]
    assert done.notices() == ["rerouted"]
    assert done.outstanding == 0


async def test_what_is_wrong_with_the_request_is_told_at_once_and_cools_nobody() -> None:
    other, upstream = good(), make_upstream(broken(BadRequest("No such field.")))
    with pytest.raises(BadRequest):
        await Executed(ask(), upstream, make_upstream(other)).go()
    assert other.requests == []
    assert states(upstream) == ["closed"]


# cases: R17
async def test_a_bad_body_that_an_upstream_calls_its_own_failure_is_not_sent_around() -> None:
    other = good()
    error = UpstreamError("The upstream failed with status 500: invalid parameter 'x'", upstream_status=500)
    for _ in range(5):
        upstream = make_upstream(broken(error))
        with pytest.raises(UpstreamError):
            await Executed(ask(), upstream, make_upstream(other)).go()
        assert states(upstream) == ["closed"]
    assert other.requests == []


# cases: R8 R9 R15
async def test_a_prompt_too_long_for_one_engine_goes_to_another_and_cools_nobody() -> None:
    upstream = make_upstream(broken(ContextLengthExceeded(9000, 4096)))
    for _ in range(6):
        done = await Executed(ask(), upstream, make_upstream(good())).go()
        assert done.text == "Hello, world!"
    assert states(upstream) == ["closed"]


# cases: R15
@pytest.mark.parametrize(
    "error",
    [
        UpstreamError("The upstream refused our key (401).", upstream_status=401),
        BadRequest("The upstream refused the request: insufficient_quota, check your billing details"),
    ],
)
async def test_a_refused_key_rests_every_address_that_would_be_sent_it(error: EdgeCloudError) -> None:
    upstream = make_upstream(broken(error, "a"), broken(error, "b"), name="big")
    done = await Executed(ask(), upstream, make_upstream(good())).go()
    assert done.outcomes[0][0] == "big"
    assert len(done.outcomes) == 2, "the second address has the same key"
    assert states(upstream) == ["open", "open"]


async def test_the_other_replica_is_asked_before_another_engine() -> None:
    upstream = make_upstream(broken(name="a"), broken(name="b"), good("c"), name="big")
    done = await Executed(ask(), upstream, make_upstream(good("other"))).go()
    assert done.text == "Hello, world!"
    assert {engine for engine, _ in done.outcomes} == {"big"}


# cases: R14
async def test_an_address_that_refuses_connections_gets_nothing_after_a_few_failures() -> None:
    dead = broken()
    upstream = make_upstream(dead)
    for _ in range(10):
        await Executed(ask(), upstream, make_upstream(good())).go()
    assert len(dead.requests) == 3
    assert states(upstream) == ["open"]


# cases: R10
async def test_no_more_engines_are_asked_than_settings_allow() -> None:
    engines = [broken(name=f"e{n}") for n in range(10)]
    with pytest.raises(UpstreamError):
        await Executed(ask(), *(make_upstream(engine) for engine in engines), attempts=3).go()
    assert sum(len(engine.requests) for engine in engines) == 3


async def test_what_one_address_can_t_do_its_replicas_are_not_asked() -> None:
    replica = good("small")
    upstream = make_upstream(broken(ContextLengthExceeded(9000, 4096), "small"), replica)
    done = await Executed(ask(), upstream, make_upstream(good("large"))).go()
    assert done.outcomes == [("small", "context_length_exceeded"), ("large", "ok")]
    assert replica.requests == []


async def test_the_last_that_may_be_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upstream, "patience_s", lambda self, tokens: 0.01)
    done = await Executed(
        ask(), make_upstream(good("slow", prefill_s=0.1)), make_upstream(good("other")), attempts=1
    ).go()
    assert done.outcomes == [("slow", "ok")]


async def test_when_no_more_may_be_asked_the_last_fault_is_told() -> None:
    with pytest.raises(UpstreamError, match="fell over"):
        await Executed(ask(), make_upstream(broken(), good("broken")), attempts=1).go()


async def test_when_all_have_failed_one_sentence_tells_of_each() -> None:
    first = broken(UpstreamError("A (host) refused the connection."), "a")
    second = broken(UpstreamError("B took too long."), "b")
    with pytest.raises(UpstreamError, match=r"A \(host\) refused the connection\. B took too long\."):
        await Executed(ask(), make_upstream(first), make_upstream(second)).go()


class BusyAtFirst(FakeEngine):
    """Says once when to come back."""

    retry_after = 0.05

    async def generate(self, request: ChatRequest):  # type: ignore[no-untyped-def]
        if not self.requests:
            self.requests.append(request)
            raise Overloaded("Too much to do.", retry_after=self.retry_after)
        async for event in super().generate(request):
            yield event


# cases: R11 R13
async def test_when_everybody_is_busy_the_first_to_come_back_is_waited_for() -> None:
    slow, quick = BusyAtFirst(name="slow"), BusyAtFirst(name="quick")
    slow.retry_after = 60.0
    began = asyncio.get_running_loop().time()
    done = await Executed(ask(deadline_s=30.0), make_upstream(slow), make_upstream(quick)).go()
    assert asyncio.get_running_loop().time() - began >= 0.05
    assert done.outcomes == [("slow", "queue_full"), ("quick", "queue_full"), ("quick", "ok")]


async def test_nobody_is_waited_for_beyond_the_deadline() -> None:
    busy = broken(Overloaded("Too much to do.", retry_after=10))
    with pytest.raises(Overloaded) as caught:
        await Executed(ask(deadline_s=5.0), make_upstream(busy), wait_s=30.0).go()
    assert caught.value.retry_after == 10
    assert len(busy.requests) == 1


async def test_an_engine_that_does_not_begin_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upstream, "patience_s", lambda self, tokens: 0.05)
    hung = FakeEngine(name="hung", hang_at=0)
    upstream = make_upstream(hung)
    done = await Executed(ask(), upstream, make_upstream(good())).go()
    assert done.outcomes == [("hung", "late"), ("good", "ok")]
    assert (hung.cancelled, done.outstanding) == (["decode"], 0)


async def test_white_space_is_no_beginning_and_whoever_sends_nothing_else_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Upstream, "patience_s", lambda self, tokens: 0.02)
    upstream = make_upstream(FakeEngine([b" ", b"\n", b"x"], name="blank", hang_at=2))
    for _ in range(3):
        done = await Executed(ask(), upstream, make_upstream(good())).go()
        assert (done.text, done.outcomes) == ("Hello, world!", [("blank", "late"), ("good", "ok")])
    assert not upstream.is_ready()


async def test_white_space_before_the_first_word_is_part_of_the_answer() -> None:
    first = FakeEngine([b"\n", b" ", b"x"], name="first")
    done = await Executed(ask(), make_upstream(first), make_upstream(good())).go()
    assert (done.text, done.outcomes) == ("\n x", [("first", "ok")])


async def test_every_attempt_is_told_what_is_left_of_the_deadline() -> None:
    last = good()
    await Executed(ask(deadline_s=30.0), make_upstream(broken()), make_upstream(last)).go()
    (request,) = last.requests
    assert request.deadline_s is not None
    assert 0 < request.deadline_s < 30.0


async def test_without_anybody_else_the_start_is_not_held_back() -> None:
    executed = Executed(ask(), make_upstream(FakeEngine(name="slow", hang_at=0)))
    async with aclosing(executed.execution.events()) as events:
        assert isinstance(await anext(events), Start)


@pytest.mark.parametrize("hang_at", [0, 2])
async def test_a_caller_that_leaves_cancels_the_work_and_pays_for_what_was_done(hang_at: int) -> None:
    engine = FakeEngine(name="big", hang_at=hang_at)
    executed = Executed(ask(), make_upstream(engine, price=Price(1.0, 1.0, 1000.0)), make_upstream(good()))
    task = asyncio.create_task(executed.go())
    while engine.generated < hang_at or not engine.running:  # noqa: ASYNC110 - the engine has no event
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine.cancelled == ["decode"]
    assert executed.outcomes == [("big", "interrupted")]
    (tried,) = executed.run.tried
    assert (tried.usage, tried.at_least) == (Usage(2, hang_at), True)
    assert executed.run.receipt().completion_tokens == hang_at
    assert executed.outstanding == 0


# ---------------------------------------------------------------------------------------------- in the middle


async def test_an_answer_that_breaks_off_stays_broken_where_nothing_else_is_allowed() -> None:
    engine, other = FakeEngine(name="big", fail_at=2, error=DOWN), good()
    executed = Executed(ask(), make_upstream(engine), make_upstream(other))
    with pytest.raises(UpstreamError):
        await executed.go()
    assert executed.text == "Hello,"
    assert other.requests == []


async def test_another_engine_goes_on_with_the_partial_where_that_is_allowed() -> None:
    first = FakeEngine(name="big", fail_at=2, error=DOWN)
    second = FakeEngine([b" moon", b"!"], name="small")
    executed = Executed(
        ask("one two", max_tokens=9),
        make_upstream(first, price=Price(1.0, 1.0, 1000.0)),
        make_upstream(second, price=Price(1.0, 1.0, 1000.0)),
        continue_elsewhere=True,
    )
    done = await executed.go()
    assert done.text == "Hello, moon!"
    assert (done.notices(), [type(event) for event in done.events].count(Start)) == (["continued"], 1)
    (request,) = second.requests
    assert (request.messages[-1], request.continue_final, request.max_tokens) == (
        Message("assistant", "Hello,"),
        True,
        7,
    )
    assert done.outcomes == [("big", "upstream_failed"), ("small", "ok")]
    assert all(tried.nano > 0 for tried in done.run.tried), "both parts are paid for"
    last = done.events[-1]
    assert isinstance(last, Done)
    assert last.usage == Usage(prompt_tokens=3, completion_tokens=4)
    assert done.run.reason == "the default model", "who goes on does not change who began"


@pytest.mark.parametrize("fields", [{"n": 2}, {"max_tokens": 2}])
async def test_what_cannot_be_continued_ends_where_it_broke_off(fields: dict[str, int]) -> None:
    engine, other = FakeEngine([b"a", b"b", b"c"], name="big", fail_at=2, error=DOWN), good()
    with pytest.raises(UpstreamError):
        await Executed(
            ask(**fields), make_upstream(engine), make_upstream(other), continue_elsewhere=True
        ).go()
    assert other.requests == []


async def test_an_answer_that_goes_on_from_a_given_beginning_is_continued_from_both() -> None:
    first, second = FakeEngine(name="big", fail_at=2, error=DOWN), FakeEngine([b" moon"], name="small")
    begun = (Message("user", "hi"), Message("assistant", "Oh! "))
    request = ChatRequest(messages=begun, continue_final=True, max_tokens=3)
    done = await Executed(request, make_upstream(first), make_upstream(second), continue_elsewhere=True).go()
    assert done.text == "Hello, moon"
    (asked,) = second.requests
    assert asked.messages == (begun[0], Message("assistant", "Oh! Hello,"))
    assert (asked.continue_final, asked.max_tokens) == (True, 1)


def test_the_usage_of_an_answer_in_two_parts_is_that_of_both() -> None:
    said = Said()
    said.see(Start("big", "m", 5))
    for text in ("a", "b"):
        said.see(TextDelta(text))
    said.break_off()
    said.see(Start("small", "m", 9))
    end = said.see(Done(Usage(9, 4, cached_tokens=3, reasoning_tokens=2)))
    assert isinstance(end, Done)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (5, 6)
    assert end.usage.reasoning_tokens == 2


async def test_when_nobody_can_go_on_it_is_told_what_broke_off_and_why_nobody_could() -> None:
    first = FakeEngine(name="big", fail_at=2, error=UpstreamError("The upstream fell over."))
    executed = Executed(
        ask(),
        make_upstream(first),
        make_upstream(broken(UpstreamError("It is down."))),
        continue_elsewhere=True,
    )
    with pytest.raises(UpstreamError, match=r"The upstream fell over\. It is down\."):
        await executed.go()
    assert executed.text == "Hello,"


async def test_who_cannot_continue_a_message_is_not_asked_to() -> None:
    first, cannot, can = FakeEngine(name="big", fail_at=2, error=DOWN), good("cannot"), good("can")
    cannot.continues = False
    done = await Executed(
        ask(), make_upstream(first), not_expected_to(cannot), make_upstream(can), continue_elsewhere=True
    ).go()
    assert done.outcomes == [("big", "upstream_failed"), ("can", "ok")]
    assert cannot.requests == []


async def test_who_is_not_expected_to_continue_is_asked_whether_it_does() -> None:
    first, second = FakeEngine(name="big", fail_at=2, error=DOWN), good("second")
    done = await Executed(ask(), make_upstream(first), not_expected_to(second), continue_elsewhere=True).go()
    assert done.outcomes == [("big", "upstream_failed"), ("second", "ok")]
    assert second.requests[0].continue_final


async def test_who_rests_after_failures_is_not_asked_what_it_can() -> None:
    first, second = FakeEngine(name="big", fail_at=2, error=DOWN), good("second")
    resting = not_expected_to(second)
    turn = resting.admit(1, Random(1))
    assert turn is not None
    resting.failed(turn, "it is down", 60.0)

    async def capabilities() -> Capabilities:
        raise AssertionError("It was asked.")

    second.capabilities = capabilities  # type: ignore[method-assign]
    with pytest.raises(UpstreamError):
        await Executed(ask(), make_upstream(first), resting, continue_elsewhere=True).go()


def not_expected_to(engine: FakeEngine) -> Upstream:
    upstream = make_upstream(engine)
    upstream.capabilities = replace(upstream.capabilities, continue_final=False)
    return upstream


async def test_who_was_passed_over_is_told_once() -> None:
    first, second = broken(name="first"), FakeEngine(name="second", fail_at=2, error=DOWN)
    upstreams = [make_upstream(each) for each in (first, second, good("third"))]
    done = await Executed(ask(), *upstreams, continue_elsewhere=True).go()
    assert done.notices() == ["rerouted", "continued"]


async def test_when_time_is_up_nobody_goes_on() -> None:
    late = FakeEngine(name="big", fail_at=2, error=DeadlineExceeded("Time is up."))
    other = good()
    with pytest.raises(DeadlineExceeded):
        await Executed(ask(), make_upstream(late), make_upstream(other), continue_elsewhere=True).go()
    assert other.requests == []


# ---------------------------------------------------------------------------------------------------- drafts


def draft(floor: float, hold_back: int = 2) -> Drafting:
    """The fake engine's tokens all have a logprob of -0.5."""
    return Drafting(Cascade("local", "good", floor, hold_back, 0.5), Estimate(0.9, 0.4, 0.95, "a prior"))


KEPT, NOT_KEPT = 0.5, 0.99


async def test_a_draft_that_is_kept_goes_out_whole_and_without_the_logprobs_nobody_asked_for() -> None:
    local, other = good("local"), good()
    done = await Executed(
        ask(), make_upstream(local, local=True), make_upstream(other), draft=draft(KEPT)
    ).go()
    assert done.text == "Hello, world!"
    assert local.requests[0].logprobs == 0
    assert not any(event.logprobs for event in done.events if isinstance(event, TextDelta))
    assert other.requests == []


@pytest.mark.parametrize("leaves_at", [Start, TextDelta], ids=["its start", "its first word"])
async def test_a_caller_that_leaves_a_kept_draft_ends_it_and_it_is_in_the_books(leaves_at: type) -> None:
    local = FakeEngine(name="local", hang_at=3)
    executed = Executed(ask(), make_upstream(local, local=True), make_upstream(good()), draft=draft(KEPT))
    async with aclosing(executed.execution.events()) as events:
        async for event in events:
            if isinstance(event, leaves_at):
                break
    assert executed.outcomes == [("local", "interrupted")]
    assert (local.cancelled, executed.outstanding) == (["decode"], 0)


async def test_logprobs_that_were_asked_for_stay() -> None:
    done = await Executed(
        ask(logprobs=1), make_upstream(good("local"), local=True), make_upstream(good()), draft=draft(KEPT)
    ).go()
    assert all(event.logprobs for event in done.events if isinstance(event, TextDelta))


async def test_a_draft_shorter_than_what_is_held_back_is_judged_when_it_is_complete() -> None:
    local = make_upstream(FakeEngine([b"Yes"], name="local"), local=True)
    done = await Executed(ask(), local, make_upstream(good()), draft=draft(KEPT, hold_back=28)).go()
    assert done.text == "Yes"


@pytest.mark.parametrize("script", [[b"I'm", b" sorry"], [b" ", b" "], [b"lo lo lo lo lo ", b"lo"]])
async def test_a_draft_of_bad_form_is_not_kept_however_sure_it_is(script: list[bytes]) -> None:
    local = make_upstream(FakeEngine(script, name="local"), local=True)
    done = await Executed(ask(), local, make_upstream(good()), draft=draft(0.01)).go()
    assert done.text == "Hello, world!"


async def test_of_a_draft_that_is_not_kept_no_byte_is_shown() -> None:
    local = FakeEngine([b"bad", b" bad", b" bad"], name="local")
    done = await Executed(
        ask(), make_upstream(local, local=True), make_upstream(good()), draft=draft(NOT_KEPT)
    ).go()
    assert (done.text, done.notices()) == ("Hello, world!", ["rerouted"])
    assert done.outcomes == [("local", "rejected"), ("good", "ok")]
    assert done.run.reason.startswith("next in line: The draft by local was not sure enough")
    assert local.cancelled == ["decode"]


async def test_when_the_escalation_fails_the_local_engine_answers_after_all() -> None:
    local = good("local")
    done = await Executed(
        ask(), make_upstream(local, local=True), make_upstream(broken()), draft=draft(NOT_KEPT)
    ).go()
    assert done.text == "Hello, world!"
    assert done.outcomes == [("local", "rejected"), ("broken", "upstream_failed"), ("local", "ok")]


# ---------------------------------------------------------------------------------------------------- hedges


def hedges(number: int) -> HedgeBudget:
    budget = HedgeBudget(1.0)
    for _ in range(number):
        budget.earn()
    return budget


def quick_to_hedge(engine: FakeEngine, name: str | None = None) -> Upstream:
    upstream = make_upstream(engine, name=name)
    for _ in range(8):
        upstream.estimates.learn(Usage(10, 10), Timings(ttft_s=0.01, decode_s=0.1))
    return upstream


# cases: R35
async def test_a_late_first_token_is_asked_for_elsewhere_and_both_are_in_the_books() -> None:
    slow = FakeEngine(name="slow", hang_at=0)
    done = await Executed(ask(), quick_to_hedge(slow), make_upstream(good()), hedges=hedges(1)).go()
    assert done.text == "Hello, world!"
    assert sorted(done.outcomes) == [("good", "ok"), ("slow", "outrun")]
    loser = next(tried for tried in done.run.tried if tried.engine == "slow")
    assert loser.at_least
    assert done.run.reason == "next in line: slow was slower to begin"
    assert (slow.cancelled, done.outstanding) == (["decode"], 0)


async def test_without_hedges_left_nobody_is_asked_twice() -> None:
    slow, other = FakeEngine(name="slow", prefill_s=0.2), good()
    done = await Executed(ask(), quick_to_hedge(slow), make_upstream(other), hedges=hedges(0)).go()
    assert done.outcomes == [("slow", "ok")]
    assert other.requests == []


async def test_a_rival_that_fails_leaves_the_first_alone() -> None:
    slow = FakeEngine(name="slow", prefill_s=0.2)
    done = await Executed(ask(), quick_to_hedge(slow), make_upstream(broken()), hedges=hedges(1)).go()
    assert done.text == "Hello, world!"
    assert sorted(done.outcomes) == [("broken", "upstream_failed"), ("slow", "ok")]


class OnCue(FakeEngine):
    """Begins to answer when it is told to."""

    def __init__(self, name: str, cue: asyncio.Event) -> None:
        super().__init__(name=name)
        self.cue = cue

    async def generate(self, request: ChatRequest):  # type: ignore[no-untyped-def]
        await self.cue.wait()
        async for event in super().generate(request):
            yield event


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_rival_that_begins_at_the_same_moment_or_not_at_all_leaves_nothing_behind(
    is_late: bool,
) -> None:
    cue = asyncio.Event()
    upstreams = [make_upstream(OnCue("a", cue)), make_upstream(OnCue("b", cue))]
    booked = list[object]()

    def opening(upstream: Upstream) -> Opening:
        turn = upstream.admit(10, Random(1))
        assert turn is not None
        return Opening(Attempt(upstream, turn, ask(), 10, booked.append))

    async def rival() -> Opening:
        second = opening(upstreams[1])
        if is_late:
            cue.set()
            await asyncio.sleep(0.01)
        else:
            asyncio.get_running_loop().call_later(0.01, cue.set)
        return second

    winner = await race(opening(upstreams[0]), None, hedge_s=0.01, rival=rival)
    assert winner is not None
    await winner.aclose("interrupted")
    assert [upstream.outstanding["host-0"] for upstream in upstreams] == [0, 0]
    assert len(booked) == 2


def test_hedges_are_a_share_of_requests() -> None:
    budget, taken = HedgeBudget(0.05), 0
    for _ in range(1000):
        budget.earn()
        taken += budget.take()
    assert taken == 50


# ----------------------------------------------------------------------------------------------------- money


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(lambda: Ledger(tmp_path / "edgecloud.db"))


DEAR = Price(prompt=10.0, cached=10.0, completion=1000.0)


@pytest.mark.parametrize(("price", "tokens"), [(DEAR, 5), (Price(), 0)])
async def test_who_is_paid_may_bill_a_prompt_that_it_gave_no_sign_of(
    price: Price, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(Upstream, "patience_s", lambda self, tokens: 0.02)
    hung = FakeEngine(name="hung")
    monkeypatch.setattr(hung, "generate", hang)
    done = await Executed(ask(), make_upstream(hung, price=price), make_upstream(good())).go()
    tried = done.run.tried[0]
    assert (tried.outcome, tried.usage, tried.at_least) == ("late", Usage(tokens), tokens > 0)


async def test_money_is_set_aside_before_anything_is_sent_and_the_answer_is_bounded_by_it(
    books: Books,
) -> None:
    engine = good("big")
    budget = BudgetSettings(per_day=1.0, answer_tokens=500)
    executed = Executed(ask(), make_upstream(engine, price=DEAR), books=books, budget=budget)
    await executed.go()
    assert engine.requests[0].max_tokens == 500
    ((spent, reserved), *_) = await books.do(lambda ledger: ledger.sums(executed.run.limits))
    assert (spent, reserved) == (0, pytest.approx(0.5e9, rel=0.01)), "settled by the gateway, not here"
    await books.aclose()


async def test_an_engine_that_nobody_can_pay_is_passed_over(books: Books) -> None:
    dear, free = good("dear"), good("free")
    done = await Executed(
        ask(),
        make_upstream(dear, price=DEAR),
        make_upstream(free),
        books=books,
        budget=BudgetSettings(per_day=0.5),
    ).go()
    assert (done.text, dear.requests) == ("Hello, world!", [])
    assert done.run.reason == "next in line: dear is not paid for by the budget"
    with pytest.raises(BudgetExceeded):
        await Executed(
            ask(), make_upstream(dear, price=DEAR), books=books, budget=BudgetSettings(per_day=0.5)
        ).go()
    await books.aclose()


async def test_a_failed_attempt_leaves_its_money_for_the_next(books: Books) -> None:
    budget = BudgetSettings(per_day=0.6, answer_tokens=500)
    done = await Executed(
        ask(),
        make_upstream(broken(), price=DEAR),
        make_upstream(good(), price=DEAR),
        books=books,
        budget=budget,
    ).go()
    assert done.text == "Hello, world!"
    await books.aclose()


async def test_an_engine_that_was_not_asked_is_no_attempt(books: Books) -> None:
    done = await Executed(
        ask(),
        make_upstream(good("dear"), price=DEAR),
        make_upstream(good("free")),
        books=books,
        budget=BudgetSettings(per_day=0.1),
        attempts=1,
    ).go()
    assert done.outcomes == [("free", "ok")]
    await books.aclose()


async def test_a_hedge_is_paid_from_what_the_first_attempt_leaves(books: Books) -> None:
    slow, rival = FakeEngine(name="slow", prefill_s=0.2), good()
    first = make_upstream(slow, price=DEAR)
    for _ in range(8):
        first.estimates.learn(Usage(10, 10), Timings(ttft_s=0.01, decode_s=0.1))
    done = await Executed(
        ask(),
        first,
        make_upstream(rival, price=DEAR),
        books=books,
        budget=BudgetSettings(per_day=0.9, answer_tokens=500),
        hedges=hedges(1),
    ).go()
    assert (done.outcomes, rival.requests) == ([("slow", "ok")], [])
    await books.aclose()


async def test_usage_that_cannot_be_is_not_paid_for(books: Books) -> None:
    engine = FakeEngine(name="liar", cached_tokens=10**9)

    async def lies(request: ChatRequest):  # type: ignore[no-untyped-def]
        async for event in FakeEngine.generate(engine, request):
            yield Done(Usage(10**9, 10**9)) if isinstance(event, Done) else event

    engine.generate = lies  # type: ignore[method-assign, assignment]
    budget = BudgetSettings(per_day=1.0, answer_tokens=500)
    done = await Executed(ask(), make_upstream(engine, price=DEAR), books=books, budget=budget).go()
    assert done.run.nano <= 0.51e9
    await books.aclose()


async def test_nobody_is_paid_from_a_budget_that_nobody_keeps() -> None:
    dear = good("dear")
    with pytest.raises(BudgetExceeded, match="no ledger"):
        await Executed(ask(), make_upstream(dear, price=DEAR), budget=BudgetSettings(per_day=9.0)).go()
    assert dear.requests == []


async def test_nobody_is_paid_while_the_ledger_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "edgecloud.db").mkdir()
    books = Books(lambda: Ledger(tmp_path / "edgecloud.db"))
    dear, free = good("dear"), good("free")
    done = await Executed(
        ask(),
        make_upstream(dear, price=DEAR),
        make_upstream(free),
        books=books,
        budget=BudgetSettings(per_day=9.0),
    ).go()
    assert (done.text, dear.requests) == ("Hello, world!", [])
    assert done.notices() == []
    with pytest.raises(BudgetExceeded, match="can't be read"):
        await Executed(
            ask(), make_upstream(dear, price=DEAR), books=books, budget=BudgetSettings(per_day=9.0)
        ).go()
    await books.aclose()


# ------------------------------------------------------------------------------------------------- no leaks


async def test_when_everybody_rests_that_is_what_is_told() -> None:
    upstream = make_upstream(broken())
    for _ in range(3):
        with pytest.raises(UpstreamError):
            await Executed(ask(), upstream).go()
    with pytest.raises(Unavailable):
        await Executed(ask(), upstream).go()


async def test_a_caller_that_leaves_gives_the_probe_of_a_resting_engine_back() -> None:
    engine = broken(Overloaded("Busy.", retry_after=0.01))
    upstream = make_upstream(engine)
    with pytest.raises(Overloaded):
        await Executed(ask(), upstream, attempts=1).go()
    await asyncio.sleep(0.02)
    engine.refuse, engine.hang_at = None, 0
    asking = asyncio.create_task(Executed(ask(), upstream).go())
    while not engine.running:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.005)
    assert not upstream.is_ready(), "the probe is out"
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert upstream.is_ready()


async def test_a_budget_that_pays_nobody_gives_the_probe_of_a_resting_engine_back(books: Books) -> None:
    engine = broken(Overloaded("Busy.", retry_after=0.01))
    upstream = make_upstream(engine, price=DEAR)
    with pytest.raises(Overloaded):
        await Executed(ask(), upstream, attempts=1).go()
    await asyncio.sleep(0.02)
    with pytest.raises(BudgetExceeded):
        await Executed(ask(), upstream, books=books, budget=BudgetSettings(per_day=0.1)).go()
    assert upstream.is_ready()
    await books.aclose()


# cases: R21 R22
async def test_a_hundred_requests_that_end_every_way_leave_nothing_outstanding() -> None:
    upstreams = [
        make_upstream(
            FakeEngine(name="hung", hang_at=1), FakeEngine(name="b", fail_at=1, error=DOWN), name="x"
        ),
        make_upstream(broken(), good("d"), name="y"),
    ]

    async def one(number: int) -> None:
        executed = Executed(ask(), *upstreams, continue_elsewhere=number % 3 == 0)
        task = asyncio.create_task(executed.go())
        await asyncio.sleep(0.001 * (number % 20))
        if number % 2:
            task.cancel()
        await asyncio.wait([task], timeout=0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(one(number) for number in range(100)))
    assert [upstream.outstanding[each.name] for upstream in upstreams for each in upstream.deployments] == [
        0
    ] * 4


async def test_those_who_come_at_once_are_spread_as_if_they_had_come_one_by_one() -> None:
    engines = [good(), good()]
    upstream = make_upstream(*engines)

    await asyncio.gather(*(Executed(ask(), upstream).go() for _ in range(8)))

    assert [len(engine.requests) for engine in engines] == [4, 4]
