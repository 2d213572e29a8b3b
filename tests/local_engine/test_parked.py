"""Prefixes parked in main memory: what is kept, what goes first, and that coming back changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from edgecloud.local_engine.batcher import Batcher
from edgecloud.local_engine.llama import Model
from edgecloud.local_engine.parked import Parked, ParkedPrefixes

from .conftest import collect, job, words

MakeBatcher = Callable[..., Batcher]


def state(size: int) -> bytearray:
    return bytearray(size)


def test_the_longest_shared_prefix_is_found() -> None:
    parked = ParkedPrefixes(1 << 20)
    parked.add(Parked([1, 2, 3, 4], state(1)))
    parked.add(Parked([1, 2, 9], state(1)))
    found, length = parked.best_match([1, 2, 9, 9])
    assert found is not None
    assert (found.tokens, length) == ([1, 2, 9], 3)
    assert parked.best_match([7]) == (None, 0)


def test_of_equals_the_one_that_is_quicker_to_copy_is_taken() -> None:
    parked = ParkedPrefixes(1 << 20)
    for rest in ([5, 6, 7], [8], [9, 9]):
        parked.add(Parked([1, 2, *rest], state(1)))
    found, length = parked.best_match([1, 2, 3])
    assert found is not None
    assert (found.tokens, length) == ([1, 2, 8], 2)


def test_the_same_is_found_whoever_was_used_last() -> None:
    parked = ParkedPrefixes(1 << 20)
    for last in (5, 4):
        parked.add(Parked([1, 2, last], state(1)))
    for _ in range(3):
        found, _ = parked.best_match([1, 2, 3])
        assert found is not None
        assert found.tokens == [1, 2, 4]
        parked.touch(found)


def test_a_state_that_another_one_contains_goes() -> None:
    parked = ParkedPrefixes(1 << 20)
    parked.add(Parked([1, 2], state(5)))
    parked.add(Parked([1, 2, 3], state(7)))
    assert (len(parked), parked.num_bytes) == (1, 7)


def test_the_least_recently_used_goes_when_the_budget_is_spent() -> None:
    parked = ParkedPrefixes(20)
    for first in (1, 2):
        parked.add(Parked([first, 0], state(10)))
    used, _ = parked.best_match([1, 0])
    assert used is not None
    parked.touch(used)
    parked.add(Parked([3, 0], state(10)))
    assert [parked.best_match([first, 0])[1] for first in (1, 2, 3)] == [2, 0, 2]
    assert parked.num_bytes == 20
    assert not parked.has_room(21)


def test_what_was_let_go_meanwhile_can_still_be_used() -> None:
    parked = ParkedPrefixes(20)
    first = Parked([1, 0], state(15))
    parked.add(first)
    assert parked.add(Parked([2, 0], state(15))) == [first]
    parked.touch(first)
    assert (len(parked), parked.num_bytes, first.num_uses) == (1, 15, 1)


def parked_in(batcher: Batcher) -> ParkedPrefixes:
    return batcher._kv._parked


@pytest.mark.model
async def test_long_prefixes_leave_the_context_and_come_back_with_the_same_answer(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(cells=2048)
    prompts = [words(model, 400), words(model, 400, start=900)]
    first = [await collect(batcher.submit(job(prompt, 8))) for prompt in prompts]
    assert batcher.stats().used_cells <= 256
    assert len(parked_in(batcher)) == 2
    assert batcher.stats().parked_bytes > 2 * 400 * 20_000
    again = [await collect(batcher.submit(job(prompt, 8))) for prompt in prompts]
    assert [answer.tokens for answer in again] == [answer.tokens for answer in first]
    assert batcher.stats().cached_tokens == 2 * 399


@pytest.mark.slow
@pytest.mark.model
async def test_without_room_for_them_long_prefixes_are_let_go(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(cells=2048, prefix_bytes=0)
    for start in (0, 900):
        await collect(batcher.submit(job(words(model, 400, start=start), 8)))
    assert (batcher.stats().parked_bytes, len(parked_in(batcher))) == (0, 0)
    assert batcher.stats().used_cells <= 256


@pytest.mark.model
async def test_a_parked_prefix_serves_several_at_once(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(cells=2048)
    system = words(model, 300)
    await collect(batcher.submit(job(system, 1)))
    before = batcher.stats().prefill_tokens
    turns = [system + words(model, 20, start=100 * k) for k in range(1, 5)]
    await asyncio.gather(*(collect(batcher.submit(job(turn, 2))) for turn in turns))
    assert batcher.stats().prefill_tokens - before <= 4 * 20
    assert batcher.stats().running == 0
