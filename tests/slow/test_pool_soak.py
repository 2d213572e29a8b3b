"""Two thousand requests on a pool of 64 blocks, many of them cut short, leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter

import aiohttp
import psutil
import pytest

from edgecloud.pool.engine import PoolEngine
from edgecloud.pool.plan import StepPlan
from tests.support.fake_pool import live_pool, make_pool, remembered
from tests.support.fake_runner import FakeRunner, expected
from tests.support.live import eventually

pytestmark = pytest.mark.slow

NUM_REQUESTS = 2000
AT_ONCE = 24


def body_of(source: random.Random, number: int) -> dict[str, object]:
    head = source.choice(["a prefix that many share, ", "another one, shorter, ", ""])
    return {
        "prompt": head + f"{number}:" + "x" * source.randint(1, 30),
        "max_tokens": source.randint(1, 40),
        "n": source.choice([1, 1, 1, 2, 3]),
        "stream": source.random() < 0.7,
        "priority": source.choice([0, 0, -1, 2]),
        "stop": source.choice([None, None, ["e", "qq"]]),
    }


async def ask(session: aiohttp.ClientSession, url: str, source: random.Random, number: int) -> str:
    """One request: answered, late, or left at some moment; in one word, what became of it."""
    body = body_of(source, number)
    headers = {}
    if source.random() < 0.2:
        headers["x-request-deadline-ms"] = str(source.randint(1, 80))
    leaves = source.random() < 0.3
    try:
        async with asyncio.timeout(source.random() * 0.15 if leaves else 60):
            async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                text = await answer.text()
    except TimeoutError:
        assert leaves, "an answer that was waited for never came"
        return "left"
    if answer.status == 504 or '"deadline_exceeded"' in text:
        return "late"
    if answer.status == 500 or '"engine_failed"' in text:
        return "failed"
    assert answer.status in (200, 429), text
    if answer.status == 200 and not body["stream"] and body["stop"] is None:
        choices = (await answer.json())["choices"]
        for choice in choices:
            said = bytes(
                expected(str(body["prompt"]).encode(), int(str(body["max_tokens"])), choice["index"])
            )
            assert choice["text"].encode() == said, "an answer depends on what ran beside it"
    return "answered" if answer.status == 200 else "refused"


async def storm(url: str, seed: int, number: int) -> Counter[str]:
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    places = asyncio.Semaphore(AT_ONCE)
    # One connection a request: a client that leaves takes its connection with it.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:

        async def one(index: int) -> None:
            async with places:
                outcomes[await ask(session, url, source, index)] += 1

        await asyncio.gather(*(one(index) for index in range(number)))
    return outcomes


def memory() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e6


async def whole(engine: PoolEngine, runner: FakeRunner) -> None:
    """Nothing runs, waits or is held, and nothing remembers those who were here."""
    await engine.loop.ask(lambda scheduler: scheduler.check())
    stats = engine.loop.stats
    assert (stats.running, stats.waiting, stats.used_blocks, stats.host_blocks) == (0, 0, 0, 0)
    assert not runner.requests
    assert remembered(engine) == []


# cases: E7, E73, E74
def test_two_thousand_requests_on_sixty_four_blocks_leave_nothing_behind() -> None:
    faults = random.Random(1)

    def before_step(plan: StepPlan) -> None:
        if faults.random() < 0.002:
            raise RuntimeError("a fault now and then")

    engine, runner = make_pool(
        num_blocks=64,
        block_size=4,
        num_host_blocks=16,
        context=128,
        token_budget=64,
        max_running=16,
        max_waiting=64,
        policy="priority",
        runner={"step_s": 0.0005, "before_step": before_step},
    )
    with live_pool(engine) as live:

        def settle() -> None:
            eventually(lambda: not (engine.loop.num_waiting or engine.loop.stats.used_blocks))
            asyncio.run(whole(engine, runner))

        outcomes = asyncio.run(storm(live.url, 0, NUM_REQUESTS // 4))
        settle()
        settled_at = memory()
        for seed in (1, 2, 3):
            outcomes += asyncio.run(storm(live.url, seed, NUM_REQUESTS // 4))
            settle()
        grown = memory() - settled_at

        finished = engine.loop.metrics.finished
        assert outcomes.total() == NUM_REQUESTS
        assert min(outcomes[kind] for kind in ("answered", "left", "late", "failed")) > 0, outcomes
        assert engine.loop.stats.preemptions > 0
        assert finished["abort"] > 0
        assert engine.loop.metrics.cancel.total == finished["abort"]
        assert grown < 20, f"{grown:.1f} MB more after 1,500 further requests"
