"""Addresses that rest are found to be back; addresses that hold the prompt get it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from edgecloud.app import probing
from edgecloud.app.affinity import overlaps
from edgecloud.app.probing import Prober
from edgecloud.app.upstreams import Upstream
from edgecloud.errors import NotSupported, UpstreamError
from edgecloud.router.breaker import Breaker, Rules
from edgecloud.types import ChatRequest, Message
from tests.support.fake_engine import FakeEngine
from tests.support.upstreams import Executed, make_upstream

REQUEST = ChatRequest(messages=(Message("user", "hi"),))


class Counted(FakeEngine):
    """Counts how often it was asked for its health."""

    num_probes = 0

    async def health(self) -> Any:
        self.num_probes += 1
        return await super().health()


async def resting(engine: FakeEngine) -> Upstream:
    """An engine that has just failed three times, and rests for a blink."""
    upstream = make_upstream(engine)
    object.__setattr__(upstream.deployments[0], "breaker", Breaker(Rules(pause_s=0.01, most_s=0.02)))
    engine.refuse = UpstreamError("It is down.")
    for _ in range(3):
        await Executed(REQUEST, upstream, make_upstream(FakeEngine(name="other"))).go()
    engine.refuse = None
    assert upstream.rests(upstream.deployments[0])
    return upstream


async def settled(upstream: Upstream) -> None:
    for _ in range(200):
        if not upstream.rests(upstream.deployments[0]):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it was never found to be back")


async def test_an_address_that_is_back_is_found_without_a_request() -> None:
    engine = Counted(name="big")
    upstream = await resting(engine)
    prober = Prober()
    prober.watch(upstream)
    prober.watch(upstream)
    await settled(upstream)
    assert engine.num_probes == 1
    assert len(engine.requests) == 3
    await prober.aclose()


async def test_one_that_is_still_sick_is_asked_again_later() -> None:
    engine = Counted(name="big")
    engine.ok = False
    upstream = await resting(engine)
    prober = Prober()
    prober.watch(upstream)
    while engine.num_probes < 3:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.01)
    num_sick = engine.num_probes
    engine.ok = True
    await settled(upstream)
    assert engine.num_probes == num_sick + 1
    assert len(engine.requests) == 3, "no request was risked on it"
    await prober.aclose()


@pytest.mark.parametrize("asked_for", [False, True])
async def test_a_long_pause_ends_when_the_address_is_well_unless_it_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, asked_for: bool
) -> None:
    monkeypatch.setattr(probing, "LOOK_S", 0.01)
    engine = Counted(name="big")
    engine.ok = False
    upstream = make_upstream(engine)
    turn = upstream.admit(1, Random(1))
    assert turn is not None
    object.__setattr__(turn.deployment, "breaker", breaker := Breaker(Rules(failures=1, pause_s=3600)))
    lease = breaker.admit(upstream._clock())
    assert lease is not None
    breaker.fail(lease, upstream._clock(), "It is down.", pause_s=3600 if asked_for else None)
    prober = Prober()
    prober.watch(upstream)

    await asyncio.sleep(0.1)
    assert upstream.rests(turn.deployment)
    assert (engine.num_probes == 0) == asked_for
    engine.ok = True
    if not asked_for:
        await settled(upstream)
    await prober.aclose()


async def test_closing_gives_a_probe_that_is_under_way_back() -> None:
    class Hung(FakeEngine):
        async def health(self) -> Any:
            await asyncio.Event().wait()

    engine = Hung(name="big")
    upstream = await resting(engine)
    prober = Prober()
    prober.watch(upstream)
    await asyncio.sleep(0.05)
    assert upstream.probe(upstream.deployments[0]) is None, "the probe is out"
    await prober.aclose()
    assert upstream.probe(upstream.deployments[0]) is not None


# ------------------------------------------------------------------------------------------------ prefixes


class Warm(FakeEngine):
    """Says how much of any prompt it holds."""

    def __init__(self, name: str, held: int | Exception | None) -> None:
        super().__init__(name=name)
        self.held = held
        self.num_asked = 0

    async def held_tokens(self, request: ChatRequest) -> tuple[int, int]:
        self.num_asked += 1
        if self.held is None:
            await asyncio.Event().wait()
        if isinstance(self.held, Exception):
            raise self.held
        return 5000, self.held or 0


async def test_the_address_that_holds_a_long_prompt_gets_it() -> None:
    engines = [Warm("a", 0), Warm("b", 4800), Warm("c", 64)]
    upstream = make_upstream(*engines)
    overlap = await overlaps(upstream, REQUEST, 5000)
    assert overlap == {"host-0": 0, "host-1": 4800, "host-2": 64}
    executed = Executed(REQUEST, upstream, overlap={"a": overlap})
    await executed.go()
    assert [len(engine.requests) for engine in engines] == [0, 1, 0]


async def test_short_prompts_and_single_addresses_are_not_worth_a_question() -> None:
    engine = Warm("a", 10)
    assert await overlaps(make_upstream(engine, Warm("b", 10)), REQUEST, 500) == {}
    assert await overlaps(make_upstream(engine), REQUEST, 5000) == {}
    assert engine.num_asked == 0


async def test_who_does_not_tell_is_not_asked_again_and_who_is_slow_is_not_waited_for() -> None:
    mute, slow, failing = Warm("mute", NotSupported("no")), Warm("slow", None), Warm("x", UpstreamError("no"))
    upstream = make_upstream(mute, slow, failing, FakeEngine(name="plain"))
    assert await overlaps(upstream, REQUEST, 5000) == {"host-0": 0, "host-2": 0, "host-3": 0}
    assert await overlaps(upstream, REQUEST, 5000) == {"host-2": 0}
    assert (mute.num_asked, failing.num_asked) == (1, 2)
