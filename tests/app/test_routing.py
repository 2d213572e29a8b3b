"""The gateway with pools: who is asked, who never is, what is told and what is written down."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from edgecloud.app.books import Books
from edgecloud.app.explaining import request_story
from edgecloud.app.gateway import Gateway
from edgecloud.errors import (
    BadRequest,
    BudgetExceeded,
    ContextLengthExceeded,
    EdgeCloudError,
    NoPermittedRoute,
    Overloaded,
    UpstreamError,
)
from edgecloud.router.budgets import limits_of
from edgecloud.router.ledger import Ledger
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import (
    Capabilities,
    ChatRequest,
    Event,
    Finish,
    Message,
    Notice,
    Receipt,
    Start,
    TextDelta,
)
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog


def ask(text: str = "hi", **fields: Any) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text),), **fields)


def entry(name: str, **fields: Any) -> PoolEntry:
    return PoolEntry(name=name, url=f"http://{name}:8000/v1", model=f"{name}-70b", **fields)


class House:
    """A gateway over a local engine and pools, with a ledger."""

    def __init__(
        self,
        folder: Path,
        *pools: tuple[PoolEntry, FakeEngine],
        local: FakeEngine | None = None,
        **settings: Any,
    ) -> None:
        self.local = local or FakeEngine([b"local"], name="small")
        self.engines = {entry.name: engine for entry, engine in pools}
        entries = tuple(entry for entry, _ in pools)
        self.settings = Settings(model="small", pool=entries, **settings)
        catalog = FakeCatalog([self.local, *self.engines.values()], pools=entries)
        self.path = folder / "edgecloud.db"
        self.books = Books(lambda: Ledger(self.path, busy_s=0.2))
        self.gateway = Gateway(self.settings, catalog, books=self.books)

    async def ask(self, request: ChatRequest) -> list[Event]:
        return [event async for event in self.gateway.chat(request)]

    async def answer(self, request: ChatRequest) -> tuple[str, Receipt]:
        events = await self.ask(request)
        finish = events[-1]
        assert isinstance(finish, Finish)
        return "".join(event.text for event in events if isinstance(event, TextDelta)), finish.receipt

    async def close(self) -> Ledger:
        """The ledger, once everything is written."""
        await self.gateway.aclose()
        return Ledger(self.path)


def pool(name: str = "big", engine: FakeEngine | None = None, **fields: Any) -> tuple[PoolEntry, FakeEngine]:
    engine = engine or FakeEngine([b"pool"], name=name, local=fields.get("local", False))
    return entry(name, **fields), engine


def money_of(ledger: Ledger, house: House) -> tuple[int, int]:
    """What is spent and reserved today, in nano."""
    limits = limits_of(house.settings.budget, time.time(), chat_id=None, tenant=None)
    return ledger.sums(limits)[0]


async def test_a_name_means_that_engine_and_no_other(tmp_path: Path) -> None:
    down = FakeEngine(name="big", local=False, refuse=UpstreamError("It is down."))
    house = House(tmp_path, pool(engine=down), pool("other"))
    with pytest.raises(UpstreamError):
        await house.ask(ask(model="big"))
    assert house.local.requests == house.engines["other"].requests == []
    text, receipt = await house.answer(ask(model="small"))
    assert (text, receipt.reason) == ("local", "asked for by name")
    await house.close()


@pytest.mark.parametrize(("mode", "text"), [("local", "local"), ("pool", "pool"), ("quality", "pool")])
async def test_the_mode_of_a_request_decides(tmp_path: Path, mode: str, text: str) -> None:
    house = House(tmp_path, pool(), router={"cascade": False})
    answer, receipt = await house.answer(ask(mode=mode))
    assert (answer, receipt.mode) == (text, mode)
    await house.close()


async def test_receipt_ledger_and_decision_tell_one_story(tmp_path: Path) -> None:
    down = FakeEngine(name="big", local=False, refuse=UpstreamError("It is down."))
    house = House(tmp_path, pool(engine=down), pool("dear", price_in=1.0, price_out=1000.0))
    events = await house.ask(ask("one two three", mode="pool", door="ask", tenant="abc"))
    finish, start = events[-1], events[0]
    assert isinstance(finish, Finish)
    assert isinstance(start, Start)
    assert (start.id, start.reason, start.engine) == (finish.receipt.id, finish.receipt.reason, "dear")
    receipt = finish.receipt
    outcomes = [(each.engine, each.outcome) for each in receipt.attempts]
    assert outcomes == [("big", "upstream_failed"), ("dear", "ok")]
    assert receipt.reason == "next in line: It is down"
    assert receipt.cost == pytest.approx((4 * 1.0 + 1 * 1000.0) / 1e6)
    notices = [event for event in events if isinstance(event, Notice)]
    assert [notice.kind for notice in notices] == ["rerouted"]
    ledger = await house.close()
    line = ledger.receipt(receipt.id)
    assert (line["cost"], line["outcome"], line["tenant"]) == (pytest.approx(receipt.cost), "ok", "abc")
    assert line["receipt"]["attempts"] == [
        {"engine": each.engine, "outcome": each.outcome, "seconds": each.seconds} for each in receipt.attempts
    ]
    assert [each["engine"] for each in line["attempts"]] == ["big", "dear"]
    decision = ledger.decision(receipt.id)
    assert decision is not None
    assert [each["engine"] for each in decision["candidates"]] == ["big", "dear"]
    assert "Then it was dear, next in line: It is down." in request_story(ledger, receipt.id)["sentences"]
    assert "three" not in json.dumps(decision), "no text in the ledger"


# cases: R38
@pytest.mark.parametrize("fields", [{"private": True}, {"offline": True}, {"mode": "local"}])
async def test_what_must_stay_here_stays_here_whatever_fails(tmp_path: Path, fields: dict[str, Any]) -> None:
    local = FakeEngine(name="small", fail_at=0, error=EdgeCloudError("It crashed."))
    house = House(tmp_path, pool(), local=local)
    with pytest.raises(EdgeCloudError, match="crashed"):
        await house.ask(ask(**fields))
    with pytest.raises(NoPermittedRoute):
        await house.ask(ask(model="big", **fields))
    assert house.engines["big"].requests == []
    await house.close()


# cases: R38
@pytest.mark.parametrize("with_pools", [True, False], ids=["pools", "none yet"])
async def test_a_conversation_that_began_privately_with_a_named_model_never_leaves_later(
    tmp_path: Path, with_pools: bool
) -> None:
    before = House(tmp_path, *([pool()] if with_pools else []))
    begun = ask("hi", model="small", private=True, door="http")
    answer, _ = await before.answer(begun)
    await before.close()
    house = House(tmp_path, pool())
    turns = (*begun.messages, Message("assistant", answer), Message("user", "and?"))
    text, _ = await house.answer(ChatRequest(messages=turns, mode="quality", door="http"))
    assert text == "local"
    with pytest.raises(NoPermittedRoute):
        await house.ask(ChatRequest(messages=turns, model="big", door="http"))
    assert house.engines["big"].requests == []
    await house.close()


async def test_a_pin_that_is_set_and_lifted_over_a_named_model_is_lifted(tmp_path: Path) -> None:
    house = House(tmp_path, pool(), router={"cascade": False})
    for private in (True, False):
        await house.ask(ask(model="small", private=private, chat_id="chat-1", door="chat"))
    text, _ = await house.answer(ask("and?", mode="quality", chat_id="chat-1", door="http"))
    assert text == "pool"
    await house.close()


async def test_a_pool_of_this_machine_may_see_everything(tmp_path: Path) -> None:
    house = House(tmp_path, pool(local=True))
    text, _ = await house.answer(ask(model="big", private=True, offline=True))
    assert text == "pool"
    await house.close()


async def test_the_same_model_is_as_good_wherever_it_is_and_whatever_it_costs(tmp_path: Path) -> None:
    local = FakeEngine([b"local"], name="small")
    local.info = SimpleNamespace(n_params=135_000_000)  # type: ignore[attr-defined]
    free, paid = pool("free"), pool("paid", price_in=0.5, price_out=2.0)
    house = House(
        tmp_path,
        *((entry.model_copy(update={"model": "small-Q4_0.gguf"}), engine) for entry, engine in (free, paid)),
        local=local,
    )
    upstreams = await house.gateway.routing.engines.all()
    assert [each.parameters for each in upstreams.values()] == [0.135] * 3

    plan = await house.gateway.routing.plan(ask("what is a monad?", mode="quality"), dry=True)
    assert len({candidate.p_ok for candidate in plan.decision.candidates}) == 1
    await house.close()


class TellingEngine(FakeEngine):
    """Knows how large its model is once it was asked what it can do."""

    num_parameters = 0
    asked = 0

    async def capabilities(self) -> Capabilities:
        self.asked += 1
        self.num_parameters = 8_000_000_000
        return await super().capabilities()


async def test_an_endpoint_that_answered_is_asked_how_large_a_model_is_whose_name_does_not_say(
    tmp_path: Path,
) -> None:
    named, nameless = TellingEngine(name="named", local=False), TellingEngine(name="nameless", local=False)
    pool = PoolEntry(name="nameless", url="http://nameless:8000/v1", model="marvel", context=9000)
    house = House(tmp_path, (entry("named", context=9000), named), (pool, nameless))

    for model in ("named", "nameless", "nameless"):
        await house.answer(ask(model=model))
        await asyncio.sleep(0.01)
    upstreams = await house.gateway.routing.engines.all()
    sizes = {name: each.parameters for name, each in upstreams.items()}
    await house.gateway.aclose()
    again = House(tmp_path, (entry("named", context=9000), named), (pool, nameless))
    kept = (await again.gateway.routing.engines.all())["nameless"].parameters

    assert sizes == {"small": None, "named": None, "nameless": 8.0}
    assert (named.asked, nameless.asked, kept) == (0, 1, 8.0)


class SilentEngine(FakeEngine):
    """Counts how often it is asked what it can do, and does not tell how large its model is."""

    num_parameters = 0
    asked = 0

    async def capabilities(self) -> Capabilities:
        self.asked += 1
        return await super().capabilities()


async def test_an_endpoint_that_does_not_tell_is_not_asked_with_every_answer(tmp_path: Path) -> None:
    silent = SilentEngine(name="silent", local=False)
    unknown = PoolEntry(name="silent", url="http://silent:8000/v1", model="marvel", context=9000)
    house = House(tmp_path, (unknown, silent))

    for _ in range(3):
        await house.answer(ask(model="silent"))
        await asyncio.sleep(0.01)
    await house.close()

    assert silent.asked == 1


async def test_without_pools_no_router_is_loaded(tmp_path: Path) -> None:
    house = House(tmp_path)
    text, receipt = await house.answer(ask())
    assert (text, receipt.reason, house.gateway._routing) == ("local", "the default model", None)
    ledger = await house.close()
    assert ledger.receipt(receipt.id)["outcome"] == "ok"


async def test_a_paid_pool_is_asked_whether_it_continues_a_message_unless_that_stays_here(
    tmp_path: Path,
) -> None:
    begun = ChatRequest(
        messages=(Message("user", "hi"), Message("assistant", "Oh")), continue_final=True, model="big"
    )
    able, unable = FakeEngine(name="big", local=False), FakeEngine(name="other", local=False)
    unable.continues = False
    house = House(tmp_path, pool(engine=able, price_out=1.0), pool("other", unable, price_out=1.0))
    secret = (Message("user", "a secret"), begun.messages[1])
    for staying in ({"private": True, "messages": secret}, {"offline": True}):
        with pytest.raises(EdgeCloudError):
            await house.ask(dataclasses.replace(begun, **staying))
    assert not (await house.gateway.routing.engines.all())["big"].capabilities.continue_final
    with pytest.raises(BadRequest, match="other can't continue a message"):
        await house.ask(dataclasses.replace(begun, model="other"))

    text, _ = await house.answer(begun)

    assert (text, able.requests[0].continue_final) == ("Hello, world!", True)
    await house.close()


async def test_pools_serve_without_any_model_here(tmp_path: Path) -> None:
    house = House(tmp_path, pool())
    house.gateway.catalog.engines.pop("small")  # type: ignore[attr-defined]
    text, _ = await house.answer(ask())
    assert text == "pool"
    with pytest.raises(NoPermittedRoute):
        await house.ask(ask(private=True))
    await house.close()


async def test_a_refused_request_is_in_the_ledger_with_its_reason(tmp_path: Path) -> None:
    house = House(tmp_path, pool())
    request = ask(model="big", private=True)
    with pytest.raises(NoPermittedRoute) as caught:
        await house.ask(request)
    ledger = await house.close()
    assert ledger.receipt(request.id)["outcome"] == "no_permitted_route"
    assert ledger.decision(request.id) == {"refused": caught.value.message}


# cases: R27
async def test_of_many_at_once_no_more_are_sent_than_the_budget_pays(tmp_path: Path) -> None:
    engine = FakeEngine([b"x"], name="big", local=False)
    # Nobody is answered, and so gives back what he did not need, before everybody has asked.
    engine.loaded = asyncio.Event()
    budget = {"per_day": 3.5, "answer_tokens": 1000}
    house = House(tmp_path, pool(engine=engine, price_out=1000.0), budget=budget)
    asked = [asyncio.ensure_future(house.answer(ask(model="big"))) for _ in range(20)]
    async with asyncio.timeout(60):
        for refused in islice(asyncio.as_completed(asked), 17):
            with pytest.raises(BudgetExceeded):
                await refused
    engine.loaded.set()
    answered = [
        each for each in await asyncio.gather(*asked, return_exceptions=True) if isinstance(each, tuple)
    ]
    assert len(engine.requests) == len(answered) == 3
    ledger = await house.close()
    assert money_of(ledger, house) == (3 * 1_000_000, 0)


async def test_a_plan_counts_the_money_that_will_be_set_aside(tmp_path: Path) -> None:
    # A token costs one: about 4 of them are asked, but money is set aside for a byte each, and a template.
    house = House(tmp_path, pool(price_in=1e6), budget={"per_day": 100.0})
    asked = ask("one two three", mode="quality", max_tokens=1)
    told = await house.gateway.explain(asked)
    assert [each["code"] for each in told["decision"]["removed"]] == ["budget"]
    text, receipt = await house.answer(asked)
    assert (text, receipt.reason) == ("local", told["decision"]["reason"])
    named = dataclasses.replace(asked, model="big", mode="auto")
    for way in (house.gateway.explain, house.ask):
        with pytest.raises(BudgetExceeded):
            await way(named)
    assert house.engines["big"].requests == []
    await house.close()


async def test_a_request_that_nobody_can_pay_is_402_and_local_answers_for_auto(tmp_path: Path) -> None:
    house = House(tmp_path, pool(price_out=1000.0), budget={"per_day": 0.0})
    with pytest.raises(BudgetExceeded) as caught:
        await house.ask(ask(model="big"))
    assert (caught.value.status, caught.value.exit_code) == (402, 4)
    text, _ = await house.answer(ask(mode="quality"))
    assert text == "local"
    await house.close()


async def test_a_cancelled_request_settles_what_it_used(tmp_path: Path) -> None:
    engine = FakeEngine([b"a", b"b", b"c"], name="big", local=False, hang_at=2)
    house = House(tmp_path, pool(engine=engine, price_out=1000.0), budget={"per_day": 100.0})
    request = ask(model="big")
    stream = house.gateway.chat(request)
    async for event in stream:
        if isinstance(event, TextDelta) and event.text == "b":
            break
    await stream.aclose()
    ledger = await house.close()
    line = ledger.receipt(request.id)
    assert (line["outcome"], line["cost"]) == ("interrupted", pytest.approx(2 * 1000 / 1e6))
    assert line["attempts"][0]["at_least"]
    assert line["receipt"]["completion_tokens"] == line["attempts"][0]["completion_tokens"] == 2
    assert ledger.recent(1)[0]["completion_tokens"] == 2
    assert money_of(ledger, house) == (2_000_000, 0)


async def test_what_was_learnt_of_engines_is_there_for_the_next_process(tmp_path: Path) -> None:
    down = FakeEngine(name="big", local=False, refuse=Overloaded("Busy.", retry_after=50))
    house = House(tmp_path, pool(engine=down))
    await house.answer(ask(mode="quality"))
    await house.close()
    assert len(asyncio.all_tasks()) == 1, "nobody looks after the pool any more"
    fresh = House(tmp_path, pool())
    text, _ = await fresh.answer(ask(mode="quality"))
    assert text == "local", "the pool still rests"
    assert fresh.engines["big"].requests == []
    await fresh.close()


async def test_what_was_answered_before_the_first_pool_is_no_guess_beside_it(tmp_path: Path) -> None:
    alone = House(tmp_path, local=FakeEngine([b"one ", b"two ", b"three ", b"four ", b"five"], name="small"))
    for _ in range(20):
        await alone.answer(ask())
    await alone.close()
    house = House(tmp_path, pool())
    story = await house.gateway.explain(ask(mode="local"))
    (candidate,) = story["decision"]["candidates"]
    assert candidate["answers_seen"] == 16
    assert "a guess" not in "".join(story["sentences"])
    await house.close()


# cases: R36
async def test_the_turns_of_one_conversation_stay_at_one_address(tmp_path: Path) -> None:
    urls = ("http://b:8000/v1", "http://c:8000/v1", "http://d:8000/v1")
    big = entry("big", replicas=[{"url": url} for url in urls])
    engines = [FakeEngine([b"x"], name=name, local=False) for name in ("big", *urls)]
    house = House(tmp_path, (big, engines[0]))
    house.gateway.catalog.engines.update({engine.name: engine for engine in engines})  # type: ignore[attr-defined]
    turns: list[Message] = []
    for number in range(20):
        turns += [Message("user", f"turn {number}")]
        await house.answer(ChatRequest(messages=tuple(turns), model="big", door="http"))
        turns += [Message("assistant", "x")]
    assert sorted(len(engine.requests) for engine in engines) == [0, 0, 0, 20]
    await house.close()


async def test_a_ledger_that_cannot_be_used_costs_nobody_an_answer(tmp_path: Path) -> None:
    (tmp_path / "edgecloud.db").mkdir()
    house = House(tmp_path, pool())
    text, _ = await house.answer(ask(mode="pool"))
    assert text == "pool"
    await house.gateway.aclose()


FAULTS: list[EdgeCloudError] = [
    UpstreamError("It fell over."),
    UpstreamError("The upstream refused our key (401).", upstream_status=401),
    Overloaded("Busy.", retry_after=0.01),
    ContextLengthExceeded(10, 5),
    BadRequest("The upstream refused the request."),
]


class Moody(FakeEngine):
    """Does what its script says next: answers, refuses, or breaks off after some tokens."""

    def __init__(self, name: str, local: bool, moods: list[tuple[int, int]]) -> None:
        super().__init__([b"a", b"b", b"c"], name=name, local=local)
        self.moods = moods

    async def generate(self, request: ChatRequest):  # type: ignore[no-untyped-def]
        kind, place = self.moods.pop(0) if self.moods else (-1, 0)
        self.refuse = FAULTS[kind] if kind >= 0 and place == 0 else None
        self.fail_at, self.error = (place, FAULTS[kind]) if kind >= 0 and place > 0 else (None, self.error)
        async for event in super().generate(request):
            yield event


MOODS = st.lists(st.tuples(st.integers(-1, len(FAULTS) - 1), st.integers(0, 2)), max_size=6)
FORBIDDEN = st.sampled_from([{"private": True}, {"offline": True}, {"mode": "local"}])


# cases: R38 R40
@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(MOODS, MOODS, MOODS, FORBIDDEN, st.booleans())
async def test_no_sequence_of_failures_sends_a_byte_to_an_engine_that_is_not_allowed(
    tmp_path_factory: pytest.TempPathFactory,
    here: list[tuple[int, int]],
    near: list[tuple[int, int]],
    far: list[tuple[int, int]],
    fields: dict[str, Any],
    goes_on: bool,
) -> None:
    engines = {name: Moody(name, name != "far", moods) for name, moods in (("near", near), ("far", far))}
    house = House(
        tmp_path_factory.mktemp("house"),
        (entry("near", local=True), engines["near"]),
        (entry("far", price_out=1.0), engines["far"]),
        local=Moody("small", True, here),
        router={"continue_elsewhere": goes_on, "hedge": 0.2, "wait_s": 0.1},
        budget={"per_day": 1.0},
    )
    for _ in range(3):
        with contextlib.suppress(EdgeCloudError):
            await house.ask(ask(**fields))
    assert engines["far"].requests == []
    upstreams = await house.gateway.routing.engines.all()
    assert [each.outstanding[d.name] for each in upstreams.values() for d in each.deployments] == [0, 0, 0]
    ledger = await house.close()
    assert money_of(ledger, house) == (0, 0)
    ledger.close()
