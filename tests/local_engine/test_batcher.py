"""Many sequences in one context: they don't disturb each other, and whatever fails or leaves, the others go
on.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable

import pytest

from edgecloud.errors import DeadlineExceeded, EngineFailure, InternalError, Overloaded, Unavailable
from edgecloud.local_engine.batcher import Batcher
from edgecloud.local_engine.llama import Candidates, Context, Grammar, Model
from edgecloud.local_engine.sampler import SamplingPlan, TokenSampler

from .conftest import chat, collect, job, words

pytestmark = pytest.mark.model

MakeBatcher = Callable[..., Batcher]

QUESTIONS = ("Why is the sky blue?", "Name three fruits.", "What is a cat?", "Tell me about Rome.")


async def settled(batcher: Batcher) -> None:
    """Wait until nothing runs or waits."""
    async with asyncio.timeout(60):
        while not batcher.is_idle or batcher.stats().running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def assert_nothing_is_held(batcher: Batcher) -> None:
    """Every cell and sequence id is free."""
    stats = batcher.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.used_cells == 0
    batcher.close()
    assert batcher._kv.num_free_ids == 12


async def test_interleaved_answers_are_those_each_prompt_gets_alone(
    model: Model, make_batcher: MakeBatcher
) -> None:
    prompts = [chat(model, question) for question in QUESTIONS]
    alone = make_batcher(parallel=1)
    expected = [(await collect(alone.submit(job(prompt, 10)))).tokens for prompt in prompts]
    together = make_batcher(parallel=4)
    results = await asyncio.gather(*(collect(together.submit(job(prompt, 10))) for prompt in prompts))
    # The batch's shape may tip a near tie late in an answer; the beginnings must agree.
    assert [result.tokens[0][:8] for result in results] == [tokens[0][:8] for tokens in expected]
    assert together.stats().steps < alone.stats().steps / 2


async def test_a_prefix_that_is_shared_gives_the_answer_that_computing_it_gives(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher()
    prompt = chat(model, "What is the capital of France?")
    first = await collect(batcher.submit(job(prompt, 12)))
    second = await collect(batcher.submit(job(prompt, 12)))
    assert first.tokens == second.tokens
    assert (first.ticket.cached_tokens, second.ticket.cached_tokens) == (0, len(prompt) - 1)


async def test_the_next_turn_of_a_chat_computes_only_what_is_new(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher()
    prompt = words(model, 100)
    first = await collect(batcher.submit(job(prompt, 8)))
    turn = prompt + first.tokens[0] + words(model, 10, start=500)
    second = await collect(batcher.submit(job(turn, 4)))
    # The last token of an answer is drawn but never computed.
    assert second.ticket.cached_tokens == 107
    assert batcher.stats().prefill_tokens == 100 + len(turn) - 107


async def test_processed_and_cached_tokens_make_up_every_prompt(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(cells=2048)
    system = words(model, 90)
    tickets = [batcher.submit(job(system + words(model, 20, start=100 * k), 3)) for k in range(6)]
    for ticket in tickets:
        await collect(ticket)
    stats = batcher.stats()
    assert stats.prefill_tokens + stats.cached_tokens == 6 * 110
    assert stats.cached_tokens >= 5 * 90


async def test_n_answers_share_one_prefill_and_differ_by_seed(
    model: Model, make_batcher: MakeBatcher
) -> None:
    prompt = chat(model, "Tell me a story.")
    plan = SamplingPlan(temperature=1.0, seed=7)
    batcher = make_batcher()
    answers = await collect(batcher.submit(job(prompt, 16, n=3, plan=plan)))
    assert batcher.stats().prefill_tokens == len(prompt) + 2
    assert len({tuple(tokens) for tokens in answers.tokens}) == 3
    again = await collect(batcher.submit(job(prompt, 16, n=3, plan=plan)))
    assert [tokens[:3] for tokens in again.tokens] == [tokens[:3] for tokens in answers.tokens]
    assert answers.reasons == {0: "length", 1: "length", 2: "length"}


async def test_more_answers_than_places_all_come(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(parallel=2)
    answers = await collect(
        batcher.submit(job(chat(model, "Hi"), 4, n=7, plan=SamplingPlan(temperature=1.0)))
    )
    assert [len(tokens) for tokens in answers.tokens] == [4] * 7
    assert_nothing_is_held(batcher)


async def test_a_short_request_overtakes_a_running_long_one(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    long = batcher.submit(job(chat(model, "Count to a thousand."), 120))
    short = batcher.submit(job(chat(model, "Hi"), 4))
    await collect(short)
    assert not long.cancelled
    assert long.num_open == 1
    assert len((await collect(long)).tokens[0]) == 120


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_sixteen_random_requests_at_once_five_times_over(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(parallel=8)
    rng = random.Random(3)
    for round_ in range(5):
        lengths = [(rng.randint(1, 80), rng.randint(1, 16)) for _ in range(16)]
        tickets = [
            batcher.submit(job(words(model, size, start=at + 31 * round_), count))
            for at, (size, count) in enumerate(lengths)
        ]
        results = await asyncio.gather(*(collect(ticket) for ticket in tickets))
        assert [len(result.tokens[0]) for result in results] == [count for _, count in lengths]
    assert_nothing_is_held(batcher)


async def test_a_full_memory_preempts_the_youngest_and_both_finish_right(
    model: Model, make_batcher: MakeBatcher
) -> None:
    prompts = [words(model, 115), words(model, 115, start=900)]
    roomy = make_batcher()
    expected = [(await collect(roomy.submit(job(prompt, 20)))).tokens[0] for prompt in prompts]
    tight = make_batcher(cells=256)
    results = await asyncio.gather(*(collect(tight.submit(job(prompt, 20))) for prompt in prompts))
    assert tight.stats().preemptions >= 1
    assert [result.tokens[0][:8] for result in results] == [tokens[:8] for tokens in expected]
    assert [len(result.tokens[0]) for result in results] == [20, 20]


async def test_a_preempted_answer_without_memory_to_save_it_is_computed_again(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher(cells=256)
    monkeypatch.setattr(batcher._kv, "state_size", lambda _sequence: 1 << 60)
    prompts = [words(model, 115), words(model, 115, start=900)]
    results = await asyncio.gather(*(collect(batcher.submit(job(prompt, 20))) for prompt in prompts))
    assert batcher.stats().preemptions >= 1
    assert [len(result.tokens[0]) for result in results] == [20, 20]
    # What was computed twice was counted as prompt once more, and nothing was lost.
    assert batcher.stats().prefill_tokens >= 230


async def test_an_answer_ends_where_the_context_does(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(cells=256)
    answers = await collect(batcher.submit(job(words(model, 240), 10_000)))
    assert answers.reasons == {0: "length"}
    assert len(answers.tokens[0]) == 16


async def test_a_long_prefill_leaves_the_running_answer_a_token_each_step(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(cells=1024, step_s=0.02)
    running = batcher.submit(job(chat(model, "Count to a thousand."), 60))
    await collect(running, until=lambda answers: len(answers.tokens[0]) >= 3)
    before = batcher.stats()
    late = batcher.submit(job(words(model, 300), 1))
    await collect(late, until=lambda answers: bool(answers.tokens[0]))
    during = batcher.stats()
    steps = during.steps - before.steps
    assert steps >= 10
    # Every step but the last ones drew a token for the running answer too.
    assert during.decoded_tokens - before.decoded_tokens >= min(steps, 50)


# ------------------------------------------------------------------------------------------------- going away


async def test_cancelled_while_queued_it_never_runs(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(parallel=1)
    running = batcher.submit(job(chat(model, "Hi"), 30))
    queued = batcher.submit(job(words(model, 300), 30))
    queued.cancel()
    await collect(queued)
    await collect(running)
    assert batcher.stats().prefill_tokens == len(chat(model, "Hi"))
    assert queued.started_at is None


async def test_cancelled_in_prefill_it_stops_within_two_steps(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(cells=2048, step_s=0.01)
    running = batcher.submit(job(chat(model, "Count."), 200))
    await collect(running, until=lambda answers: bool(answers.tokens[0]))
    victim = batcher.submit(job(words(model, 900), 30))
    while batcher.stats().running < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    victim.cancel()
    at_cancel = batcher.stats()
    await collect(victim)
    after = batcher.stats()
    assert after.steps - at_cancel.steps <= 3
    assert after.prefill_tokens < 900
    running.cancel()
    await collect(running)


async def test_cancelled_while_decoding_it_frees_everything(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    ticket = batcher.submit(job(chat(model, "Count."), 500, n=3))
    await collect(ticket, until=lambda answers: len(answers.tokens[2]) >= 2)
    ticket.cancel()
    ticket.cancel()
    await collect(ticket)
    drawn = batcher.stats().decoded_tokens
    await asyncio.sleep(0.1)
    assert batcher.stats().decoded_tokens == drawn
    assert_nothing_is_held(batcher)


async def test_a_stopped_choice_ends_and_its_siblings_go_on(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher()
    ticket = batcher.submit(job(chat(model, "Count."), 40, n=2, plan=SamplingPlan(temperature=1.0, seed=1)))
    await collect(ticket, until=lambda answers: bool(answers.tokens[0]))
    ticket.stop(0)
    rest = await collect(ticket)
    assert 0 not in rest.reasons
    assert rest.reasons[1] == "length"


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_two_hundred_random_aborts_leak_nothing(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(parallel=4, queue_limit=300)
    rng = random.Random(5)

    async def abort(at: int) -> None:
        ticket = batcher.submit(job(words(model, rng.randint(1, 120), start=at), 50, n=rng.choice((1, 1, 2))))
        await asyncio.sleep(rng.random() * 0.3)
        ticket.cancel()
        await collect(ticket)

    for start in range(0, 200, 20):
        await asyncio.gather(*(abort(start + at) for at in range(20)))
    survivor = await collect(batcher.submit(job(chat(model, "Hi"), 4)))
    assert len(survivor.tokens[0]) == 4
    assert_nothing_is_held(batcher)


async def test_a_deadline_ends_it_in_the_queue_and_while_decoding(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(parallel=1)
    soon = time.monotonic() + 0.3
    running = batcher.submit(job(chat(model, "Count."), 900, deadline=soon))
    queued = batcher.submit(job(chat(model, "Hi"), 900, deadline=soon))
    results = await asyncio.gather(collect(running), collect(queued), return_exceptions=True)
    assert [type(result) for result in results] == [DeadlineExceeded, DeadlineExceeded]
    assert_nothing_is_held(batcher)


async def test_a_full_queue_refuses_and_says_when_to_come_back(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(parallel=1, queue_limit=2)
    tickets = [batcher.submit(job(chat(model, "Hi"), 20)) for _ in range(3)]
    with pytest.raises(Overloaded) as refused:
        batcher.submit(job(chat(model, "Hi"), 20))
    assert refused.value.retry_after is not None
    assert refused.value.retry_after >= 1
    for ticket in tickets:
        await collect(ticket)
    await collect(batcher.submit(job(chat(model, "Hi"), 2)))


async def test_admission_counts_every_answer_of_a_job(model: Model, make_batcher: MakeBatcher) -> None:
    batcher = make_batcher(parallel=1, queue_limit=2)
    first = batcher.submit(job(chat(model, "Hi"), 4, n=2))
    with pytest.raises(Overloaded):
        batcher.submit(job(chat(model, "Hi"), 4, n=2))
    await collect(first)


async def test_closing_ends_running_and_waiting_answers_with_a_sentence(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher(parallel=1)
    tickets = [batcher.submit(job(chat(model, "Count."), 400)) for _ in range(3)]
    await collect(tickets[0], until=lambda answers: bool(answers.tokens[0]))
    await asyncio.to_thread(batcher.close)
    for ticket in tickets:
        with pytest.raises(Unavailable):
            await collect(ticket)
    with pytest.raises(Unavailable):
        batcher.submit(job(chat(model, "Hi"), 4))


# -------------------------------------------------------------------------------------------- when steps fail


def fail_once(monkeypatch: pytest.MonkeyPatch, code: int, *, when: Callable[[Context], bool]) -> list[int]:
    """Make the next `decode` for which `when` holds return `code` without running; gives the sizes of failed
    batches.
    """
    decode, failed = Context.decode, list[int]()

    def broken(context: Context) -> int:
        if not failed and when(context):
            failed.append(context.batch.size)
            return code
        return decode(context)

    monkeypatch.setattr(Context, "decode", broken)
    return failed


async def test_a_fatal_step_fails_its_batch_and_nobody_who_waits(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher(parallel=2)
    unlucky = [batcher.submit(job(chat(model, text), 40)) for text in QUESTIONS[:2]]
    for ticket in unlucky:
        await collect(ticket, until=lambda answers: bool(answers.tokens[0]))
    waiting = [batcher.submit(job(chat(model, text), 6)) for text in QUESTIONS[2:]]
    failed = fail_once(monkeypatch, -3, when=lambda context: context.batch.size == 2)
    results = await asyncio.gather(*(collect(ticket) for ticket in unlucky), return_exceptions=True)
    assert failed == [2]
    assert [type(result) for result in results] == [EngineFailure, EngineFailure]
    for ticket in waiting:
        assert len((await collect(ticket)).tokens[0]) == 6
    assert batcher.is_healthy
    assert batcher.stats().failed_steps == 1


async def test_an_invalid_batch_keeps_what_others_have_computed(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher(parallel=2)
    await collect(batcher.submit(job(words(model, 64), 2)))
    fail_once(monkeypatch, -1, when=lambda context: True)
    with pytest.raises(EngineFailure):
        await collect(batcher.submit(job(chat(model, "Hi"), 4)))
    again = await collect(batcher.submit(job(words(model, 64), 2)))
    assert again.ticket.cached_tokens == 63


async def test_an_idle_engine_says_the_same_again_whatever_it_did_before(
    model: Model, make_batcher: MakeBatcher
) -> None:
    batcher = make_batcher()
    crowd = [job(chat(model, f"{question} {number}"), 12) for question in QUESTIONS for number in range(3)]
    await asyncio.gather(*[collect(batcher.submit(each)) for each in crowd])
    drawn = job(chat(model, "Explain gravity."), 40, plan=SamplingPlan(temperature=1.0, seed=7))
    answers = [await collect(batcher.submit(drawn)) for _ in range(5)]
    # The first computes what the others find.
    assert [answer.tokens for answer in answers[2:]] == [answers[1].tokens] * 3


async def test_an_aborted_step_is_tried_again_and_nobody_notices(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher()
    prompt = chat(model, "What is the capital of France?")
    expected = await collect(batcher.submit(job(prompt, 10)))
    failed = fail_once(monkeypatch, 2, when=lambda context: context.batch.size == 1)
    again = await collect(batcher.submit(job(prompt, 10)))
    assert failed == [1]
    assert again.tokens == expected.tokens


async def test_where_there_is_no_room_for_two_the_younger_waits(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher()
    prompts = [chat(model, question) for question in QUESTIONS[:2]]
    expected = [await collect(batcher.submit(job(prompt, 10))) for prompt in prompts]
    failed = fail_once(monkeypatch, 1, when=lambda context: context.batch.size == 2)
    again = await asyncio.gather(*[collect(batcher.submit(job(prompt, 10))) for prompt in prompts])
    assert failed == [2]
    assert batcher.stats().preemptions == 1
    assert [each.tokens for each in again] == [each.tokens for each in expected]


async def test_no_room_for_a_prefill_shrinks_it(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, sizes = Context.decode, list[int]()

    def small_only(context: Context) -> int:
        sizes.append(context.batch.size)
        return 1 if context.batch.size > 40 else decode(context)

    monkeypatch.setattr(Context, "decode", small_only)
    answers = await collect(make_batcher().submit(job(words(model, 150), 2)))
    assert len(answers.tokens[0]) == 2
    assert max(sizes) > 40


async def test_a_bug_in_a_step_fails_who_ran_and_the_engine_goes_on(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher()
    with monkeypatch.context() as patch:
        patch.setattr(Context, "decode", lambda *_: 1 / 0)
        with pytest.raises(InternalError):
            await collect(batcher.submit(job(chat(model, "Hi"), 4)))
    assert len((await collect(batcher.submit(job(chat(model, "Hi"), 4)))).tokens[0]) == 4


class Uncopied:
    """A grammar that can be copied for so many answers."""

    param = "grammar"

    def __init__(self, model: Model, copies: int) -> None:
        self._grammar = Grammar(model, 'root ::= "ab"')
        self._copies = copies

    def clone(self) -> Grammar:
        self._copies -= 1
        if self._copies < 0:
            raise MemoryError
        return self._grammar.clone()


@pytest.mark.parametrize("copies", [0, 1])
async def test_a_request_whose_sampler_cannot_be_made_fails_alone(
    model: Model, make_batcher: MakeBatcher, copies: int
) -> None:
    batcher = make_batcher()
    other = batcher.submit(job(chat(model, "Count to a thousand."), 40))
    await collect(other, until=lambda answers: bool(answers.tokens[0]))
    with pytest.raises(EngineFailure):
        await collect(batcher.submit(job(chat(model, "Hi"), 4, n=2, grammar=Uncopied(model, copies))))
    await collect(other)
    assert batcher.stats().failed_steps == 0
    await settled(batcher)
    assert_nothing_is_held(batcher)


async def test_an_answer_whose_token_cannot_be_drawn_fails_alone(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlucky(self: TokenSampler, context: Context, index: int, scratch: Candidates) -> int | None:
        return 1 // 0 if self._grammar is not None else draw(self, context, index, scratch)

    draw = TokenSampler.draw
    monkeypatch.setattr(TokenSampler, "draw", unlucky)
    batcher = make_batcher()
    other = batcher.submit(job(chat(model, "Count to a thousand."), 40))
    await collect(other, until=lambda answers: bool(answers.tokens[0]))
    with pytest.raises(EngineFailure):
        await collect(batcher.submit(job(chat(model, "Hi"), 4, grammar=Grammar(model, 'root ::= "ab"'))))
    assert len((await collect(other)).tokens[0]) <= 40
    await settled(batcher)
    assert_nothing_is_held(batcher)


async def test_the_watchdog_sees_a_step_that_does_not_end(
    model: Model, make_batcher: MakeBatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher = make_batcher(watchdog_s=0.2)
    assert batcher.is_healthy
    decode = Context.decode

    go_on = threading.Event()

    def stuck(context: Context) -> int:
        go_on.wait(60)
        return decode(context)

    monkeypatch.setattr(Context, "decode", stuck)
    ticket = batcher.submit(job(chat(model, "Hi"), 1))
    async with asyncio.timeout(60):
        while batcher.is_healthy:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        go_on.set()
        await collect(ticket)
        while batcher.stalled_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert batcher.is_healthy


async def test_an_idle_batcher_burns_nothing(make_batcher: MakeBatcher) -> None:
    make_batcher()
    before = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - before < 0.1
