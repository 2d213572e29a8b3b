"""Drafts from the text: tried where they come true, and not where they don't or where others wait."""

from __future__ import annotations

import pytest
import torch

from edgecloud.pool.runner import Drawing
from edgecloud.pool.speculative import INDEXED_PER_STEP, NgramProposer

from .running import Pool, make_config
from .table_decoder import table_runner

SIZE = 40


def cycle(length: int) -> torch.Tensor:
    """A text that goes round: t is followed by t + 1."""
    table = torch.full((SIZE, SIZE), -9.0)
    for token in range(SIZE):
        table[token, (token + 1) % length] = 9.0
    return table


def run(pool: Pool, proposer: NgramProposer) -> None:
    while pool.scheduler.has_work:
        proposer.propose(pool.scheduler)
        pool.step()


def make_pool(table: torch.Tensor) -> Pool:
    return Pool(table_runner(table), make_config())


def test_a_text_that_repeats_takes_fewer_steps_and_stays_the_same() -> None:
    alone = make_pool(cycle(10)).answer([0], 200).tokens
    pool = make_pool(cycle(10))
    request = pool.submit([0], 200)
    run(pool, NgramProposer())
    assert pool.answers[request, 0].tokens == alone
    assert len(pool.plans) < 70
    counters = pool.scheduler.counters
    assert counters.accepted_tokens > 0.9 * counters.drafted_tokens > 0


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_text_that_goes_round_is_guessed_beyond_its_end(length: int) -> None:
    alone = make_pool(cycle(length)).answer([0], 200).tokens
    pool = make_pool(cycle(length))
    request = pool.submit([0], 200)
    run(pool, NgramProposer())
    assert pool.answers[request, 0].tokens == alone
    # Eight guesses are watched in silence; from then on seven tokens come in a step.
    assert len(pool.plans) < 50


def test_a_text_that_never_repeats_is_never_guessed() -> None:
    pool = make_pool(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)))
    pool.submit([0], 200, Drawing(temperature=1.0, seed=3))
    run(pool, NgramProposer())
    assert pool.scheduler.counters.drafted_tokens == 0
    assert len(pool.plans) == 200


def test_guesses_stop_when_they_no_longer_come_true() -> None:
    pool = make_pool(cycle(10))
    proposer = NgramProposer()
    pool.submit([0], 300, Drawing(temperature=1.0, seed=3))
    for _ in range(60):
        proposer.propose(pool.scheduler)
        pool.step()
    assert proposer.num_on == 1
    pool.runner.decoder.table = torch.zeros(SIZE, SIZE)  # type: ignore[attr-defined]
    for _ in range(60):
        proposer.propose(pool.scheduler)
        pool.step()
    assert proposer.num_on == 0


def test_short_answers_are_not_guessed() -> None:
    pool = make_pool(cycle(10))
    pool.submit([0], 40)
    run(pool, NgramProposer())
    assert pool.scheduler.counters.drafted_tokens == 0


def test_under_load_nobody_gets_drafts() -> None:
    pool = make_pool(cycle(10))
    for _ in range(5):
        pool.submit([0], 100)
    run(pool, NgramProposer(max_rows=8))
    assert pool.scheduler.counters.drafted_tokens == 0
    pool.submit([0], 100)
    run(pool, NgramProposer(max_rows=8))
    assert pool.scheduler.counters.drafted_tokens > 0


def test_a_repeating_prompt_is_not_taken_for_the_answer() -> None:
    pool = make_pool(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)))
    pool.submit([1, 2, 3, 4] * 30, 100, Drawing(temperature=1.0, seed=3))
    proposer = NgramProposer()
    run(pool, proposer)
    assert pool.scheduler.counters.drafted_tokens == 0


def test_a_long_prompt_is_looked_through_over_several_steps_and_each_token_once() -> None:
    """The one who waits for a step never waits for another's whole book to be indexed."""
    pool = Pool(
        table_runner(cycle(SIZE)),
        make_config(num_blocks=512, context=8000, max_chunk=8000, token_budget=8000),
    )
    proposer = NgramProposer()
    book = [
        int(token) for token in torch.randint(0, SIZE, (5000,), generator=torch.Generator().manual_seed(2))
    ]
    pool.submit(book, 60)
    taken = []
    while pool.scheduler.has_work:
        before = proposer.num_indexed
        proposer.propose(pool.scheduler)
        pool.step()
        taken.append(proposer.num_indexed - before)
    assert max(taken) == INDEXED_PER_STEP
    # All but the last token as it stood when each step was planned.
    assert sum(taken) == len(book) + 60 - 2
    assert taken[-1] == 1


def test_texts_share_what_may_be_looked_through_before_one_step() -> None:
    pool = Pool(
        table_runner(cycle(SIZE)),
        make_config(num_blocks=512, context=8000, max_chunk=8000, token_budget=8000),
    )
    proposer = NgramProposer()
    for first in (1, 2):
        pool.submit([first, *range(SIZE)] * 20, 10)
    pool.step()
    proposer.propose(pool.scheduler)
    assert proposer.num_indexed == INDEXED_PER_STEP
    pool.step()
    proposer.propose(pool.scheduler)
    assert proposer.num_indexed == 2 * (20 * (SIZE + 1) + 1)


def test_what_a_prompt_repeats_is_found_wherever_it_stands() -> None:
    """Where the text that is quoted lies thousands of tokens back, it is found once it has been reached."""
    quoted = [int(token) for token in torch.randperm(SIZE, generator=torch.Generator().manual_seed(5))]
    filler = [SIZE + 1] * 3000
    table = torch.full((SIZE + 2, SIZE + 2), -9.0)
    for token, following in zip(quoted, [*quoted[1:], quoted[0]], strict=True):
        table[token, following] = 9.0
    pool = Pool(
        table_runner(table), make_config(num_blocks=512, context=8000, max_chunk=8000, token_budget=8000)
    )
    request = pool.submit([*quoted, *filler, quoted[0], quoted[1]], 120)
    run(pool, NgramProposer())
    assert pool.answers[request, 0].tokens == (quoted * 5)[2:122]
    assert len(pool.plans) < 60
