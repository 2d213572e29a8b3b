"""Drafts from the text: tried where they come true, and not where they don't or where others wait."""

from __future__ import annotations

import torch

from edgecloud.pool.runner import Drawing
from edgecloud.pool.speculative import NgramProposer

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
