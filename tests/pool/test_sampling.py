"""Sampling: what each parameter does, that a draw is its choice's own, and that drafts lose nothing."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from edgecloud.errors import BadRequest, EngineFailure
from edgecloud.pool.admission import Watermarks
from edgecloud.pool.runner import Drawing

from .running import Pool, make_config
from .table_decoder import table_runner

SIZE = 12
TABLE = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) * 2
END = 0
CARELESS = Watermarks(cautious=0, guarded=0, urgent=0)


def make_pool(table: torch.Tensor = TABLE) -> Pool:
    return Pool(table_runner(table), make_config())


def draw(drawing: Drawing, num_tokens: int = 24, prompt: tuple[int, ...] = (3, 4)) -> list[int]:
    return make_pool().answer(list(prompt), num_tokens, drawing).tokens


def same_row(logits: list[float]) -> torch.Tensor:
    return torch.tensor(logits).repeat(len(logits), 1)


def follow(logit_rows: torch.Tensor, start: int, num_tokens: int) -> list[int]:
    """Greedy through the table."""
    tokens = [start]
    for _ in range(num_tokens):
        tokens.append(int(logit_rows[tokens[-1]].argmax()))
    return tokens[1:]


def shares(drawing: Drawing, num_seeds: int, drafts: tuple[int, ...] = ()) -> Counter[tuple[int, ...]]:
    """How often each answer of two tokens comes, over seeds; `drafts` are proposed for the second."""
    counts: Counter[tuple[int, ...]] = Counter()
    pool = make_pool()
    for seed in range(num_seeds):
        request = pool.submit([1], 2 if not drafts else 3, Drawing(temperature=1.0, seed=seed))
        pool.step()
        while pool.scheduler.has_work:
            for sequence in pool.scheduler.planner.running if drafts else ():
                pool.scheduler.propose({sequence.id: drafts})
            pool.step()
        counts[tuple(pool.answers[request, 0].tokens[:2])] += 1
    return counts


def test_greedy_takes_the_likeliest() -> None:
    assert draw(Drawing()) == follow(TABLE, 4, 24)


def test_a_seed_repeats_and_another_differs() -> None:
    first = draw(Drawing(temperature=1.0, seed=7))
    assert draw(Drawing(temperature=1.0, seed=7)) == first
    assert draw(Drawing(temperature=1.0, seed=8)) != first
    assert draw(Drawing(temperature=1.0)) != draw(Drawing(temperature=1.0))


def test_a_seeded_choice_is_the_same_among_neighbours_and_choices_differ() -> None:
    # cases: E59, E60
    drawing = Drawing(temperature=1.0, seed=7)
    alone = draw(drawing)
    pool = make_pool()
    pool.submit([5], 24, Drawing(temperature=1.0))
    requests = [
        pool.submit([3, 4], 24, drawing, n=3),
        pool.submit([3, 4], 24, Drawing(temperature=1.0, seed=8)),
    ]
    pool.submit([6], 24)
    pool.run()
    answers = [pool.answers[requests[0], choice].tokens for choice in range(3)]
    answers.append(pool.answers[requests[1], 0].tokens)
    assert answers[0] == alone
    assert len({tuple(answer) for answer in answers}) == 4


def test_draws_follow_the_distribution() -> None:
    num = 2000
    counts = shares(Drawing(temperature=1.0), num)
    first = torch.softmax(TABLE[1], 0)
    expected = first.unsqueeze(1) * torch.softmax(TABLE, 1)
    assert_distributed(counts, expected, num)


def test_drafts_leave_the_distribution_alone() -> None:
    # cases: E63
    num = 500
    # A likely token, and one that is hardly ever drawn.
    for draft in (int(TABLE[1].argmax()), int(TABLE[1].argmin())):
        assert shares(Drawing(temperature=1.0), num, (draft, 2)) == shares(Drawing(temperature=1.0), num)


def assert_distributed(counts: Counter[tuple[int, ...]], expected: torch.Tensor, num: int) -> None:
    """Chi-square over the pairs that are expected five times or more, within five standard deviations."""
    cells = [(counts[i, j], num * float(expected[i, j])) for i in range(SIZE) for j in range(SIZE)]
    likely = [(seen, due) for seen, due in cells if due >= 5]
    statistic = sum((seen - due) ** 2 / due for seen, due in likely)
    assert len(likely) > 20
    assert abs(statistic - len(likely)) < 5 * math.sqrt(2 * len(likely))


@pytest.mark.parametrize(
    ("drawing", "allowed"),
    [
        (Drawing(temperature=1.0, top_k=2), {0, 1}),
        (Drawing(temperature=1.0, top_p=0.75), {0, 1}),
        (Drawing(temperature=1.0, min_p=0.2), {0, 1, 2}),
        (Drawing(temperature=1e-3), {0}),
        (Drawing(temperature=1.0, logit_bias={4: 100.0}), {4}),
        (Drawing(temperature=1.0, banned=frozenset({0, 1, 2})), {3, 4}),
    ],
    ids=["top_k", "top_p", "min_p", "temperature", "bias", "banned"],
)
def test_each_filter_leaves_what_it_says(drawing: Drawing, allowed: set[int]) -> None:
    probabilities = [0.5, 0.3, 0.15, 0.04, 0.01]
    pool = make_pool(same_row([math.log(p) for p in probabilities]))
    assert set(pool.answer([0], 400, drawing).tokens) == allowed


def test_penalties_count_what_was_drawn_and_never_the_prompt() -> None:
    # Each token drawn loses 0.4 for being there and 0.25 a time: a slow formula beside it.
    logits = [2.0, 1.7, 1.1, 0.9, 0.2]
    drawing = Drawing(presence_penalty=0.4, frequency_penalty=0.25)
    pool = make_pool(same_row(logits))
    tokens = pool.answer([0, 0, 0, 0], 30, drawing).tokens
    counts: Counter[int] = Counter()
    for token in tokens:
        now = [value - 0.25 * counts[i] - 0.4 * (counts[i] > 0) for i, value in enumerate(logits)]
        assert token == now.index(max(now))
        counts[token] += 1


def test_the_repeat_penalty_looks_at_the_last_tokens_prompt_included() -> None:
    logits = [2.0, 1.5, -0.1, -0.2]
    drawing = Drawing(repeat_penalty=1.5)
    pool = make_pool(same_row(logits))
    text = [0]
    answer = pool.answer([0], 80, drawing).tokens
    for token in answer:
        seen = set(text[-64:])
        now = [v if i not in seen else v / 1.5 if v > 0 else v * 1.5 for i, v in enumerate(logits)]
        assert token == now.index(max(now))
        text.append(token)


def test_an_end_is_drawn_kept_and_last() -> None:
    table = same_row([5.0, 1.0, 0.0])
    answer = make_pool(table).answer([1], 10, Drawing(stop_ids=frozenset({END})))
    assert answer.tokens == [END]


@pytest.mark.parametrize("least", [0, 1, 4])
def test_no_end_before_the_least_number_of_tokens(least: int) -> None:
    # cases: E56
    table = same_row([5.0, 1.0, 4.0])
    drawing = Drawing(stop_ids=frozenset({END, 2}), min_tokens=least)
    assert make_pool(table).answer([1], 10, drawing).tokens == [1] * least + [END]


def test_an_end_among_right_drafts_cuts_what_follows() -> None:
    # cases: E66, E68
    table = torch.full((6, 6), -5.0)
    for token, following in ((1, 2), (2, 3), (3, END), (END, 4), (4, 5)):
        table[token, following] = 5.0
    pool = make_pool(table)
    request = pool.submit([1], 5, Drawing(stop_ids=frozenset({END})))
    pool.step()
    pool.scheduler.propose({pool.scheduler.planner.running[0].id: (3, END, 4)})
    pool.run()
    assert pool.answers[request, 0].tokens == [2, 3, END]
    assert len(pool.plans) == 2


@pytest.mark.parametrize(
    ("table", "drawing"),
    [
        (same_row([2.0, 1.7, 1.1, 0.9]), Drawing(frequency_penalty=0.25, presence_penalty=0.4)),
        (same_row([2.0, 1.7, 1.1, 0.9]), Drawing(repeat_penalty=1.4)),
        (same_row([5.0, 1.0, 0.5, 0.0]), Drawing(stop_ids=frozenset({END}), min_tokens=6)),
    ],
    ids=["penalties", "repeat", "min_tokens"],
)
def test_a_row_behind_drafts_counts_them(table: torch.Tensor, drawing: Drawing) -> None:
    alone = make_pool(table).answer([3], 12, drawing).tokens
    pool = make_pool(table)
    request = pool.submit([3], 12, drawing)
    pool.step()
    while pool.scheduler.has_work:
        done = len(pool.answers[request, 0].tokens)
        pool.scheduler.propose({pool.scheduler.planner.running[0].id: tuple(alone[done : done + 3])})
        pool.step()
    assert pool.answers[request, 0].tokens == alone
    assert len(pool.plans) <= 5


def test_a_prompt_computed_twice_is_scored_once() -> None:
    config = make_config(
        num_blocks=4, block_size=4, preemption="recompute", caching=False, watermarks=CARELESS
    )
    pool = Pool(table_runner(TABLE, 4, 4), config)
    pool.submit([1], 14)
    scored = pool.submit([3, 4, 5, 6, 7, 8, 9], 6, Drawing(score_prompt=True))
    pool.run()
    assert pool.scheduler.counters.recomputed > 0
    assert [score.token_id for score in pool.prompt_scores[scored]] == [4, 5, 6, 7, 8, 9]


def test_logprobs_are_of_the_raw_distribution() -> None:
    drawing = Drawing(temperature=0.3, logit_bias={5: 50.0}, logprobs=3)
    answer = make_pool().answer([3], 4, drawing)
    assert answer.tokens == [5] * 4
    raw = torch.log_softmax(TABLE, 1)
    for score, last in zip(answer.scores, (3, 5, 5, 5), strict=True):
        assert score.logprob == pytest.approx(float(raw[last, 5]), abs=1e-5)
        values, ids = raw[last].topk(3)
        assert [token for token, _ in score.top] == ids.tolist()
        assert [value for _, value in score.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_no_logprobs_unless_asked_for() -> None:
    pool = make_pool()
    with_them = pool.submit([3], 3, Drawing(logprobs=0))
    without = pool.submit([3], 3, Drawing())
    pool.run()
    assert [len(pool.answers[request, 0].scores) for request in (with_them, without)] == [3, 0]
    assert pool.answers[with_them, 0].scores[0].top == ()


def test_logits_that_are_no_numbers_fail_their_request_alone() -> None:
    table = TABLE.clone()
    table[1] = math.nan
    pool = make_pool(table)
    lost = pool.submit([1], 5)
    good = pool.submit([4], 5)
    pool.run()
    assert isinstance(pool.failed[lost], EngineFailure)
    assert pool.answers[good, 0].tokens == follow(TABLE, 4, 5)


class Alternating:
    """A mask: odd tokens and even ones take turns; it ends after `length`, and `stuck` can't go on."""

    def __init__(self, length: int, stuck: bool = False, at: int = 0) -> None:
        self.length, self.stuck, self.at = length, stuck, at

    def clone(self) -> Alternating:
        return Alternating(self.length, self.stuck, self.at)

    def allows(self, token: int) -> bool:
        if self.stuck and self.at == 2:
            return False
        return token == END if self.at == self.length else token != END and token % 2 == self.at % 2

    def allowed(self) -> bytes:
        if self.stuck and self.at == 2:
            raise BadRequest("The schema can't be followed any further.")
        bits = sum(1 << token for token in range(SIZE) if self.allows(token))
        return bits.to_bytes(4, "little")

    def accept(self, token: int) -> None:
        assert token != END
        assert self.allows(token)
        self.at += 1


def test_a_mask_is_obeyed_by_every_choice_and_ends_it() -> None:
    drawing = Drawing(temperature=1.0, seed=2, stop_ids=frozenset({END}), mask=Alternating(5))
    pool = make_pool()
    request = pool.submit([3], 20, drawing, n=3)
    pool.run()
    for choice in range(3):
        *text, end = pool.answers[request, choice].tokens
        assert [token % 2 for token in text] == [0, 1, 0, 1, 0]
        assert 0 not in text
        assert end == END


def test_a_mask_leaves_the_distribution_among_what_it_allows() -> None:
    num = 2000
    pool, counts = make_pool(), Counter[int]()
    for seed in range(num):
        drawing = Drawing(temperature=1.0, seed=seed, stop_ids=frozenset({END}), mask=Alternating(5))
        counts[pool.answer([1], 1, drawing).tokens[0]] += 1
    even = torch.softmax(TABLE[1], 0)[2::2]
    expected = even / even.sum()
    for index, share in enumerate(expected.tolist()):
        assert abs(counts[2 + 2 * index] - num * share) < 5 * math.sqrt(num * share * (1 - share)) + 1


def test_drafts_under_a_mask_change_nothing() -> None:
    drawing = Drawing(temperature=1.0, seed=4, stop_ids=frozenset({END}), mask=Alternating(6))
    alone = make_pool().answer([3], 20, drawing).tokens
    for guess in ((2, 3, 4), tuple(alone[1:4]), (END, 2)):
        pool = make_pool()
        request = pool.submit([3], 20, drawing)
        pool.step()
        pool.scheduler.propose({pool.scheduler.planner.running[0].id: guess})
        pool.run()
        assert pool.answers[request, 0].tokens == alone


def test_a_mask_with_no_way_on_fails_its_request_alone() -> None:
    pool = make_pool()
    stuck = pool.submit([3], 9, Drawing(temperature=1.0, seed=1, mask=Alternating(5, stuck=True)))
    good = pool.submit([4], 9)
    pool.run()
    assert isinstance(pool.failed[stuck], BadRequest)
    assert pool.answers[good, 0].tokens == follow(TABLE, 4, 9)


def test_a_complete_answer_ends_even_if_ends_are_banned() -> None:
    drawing = Drawing(banned=frozenset({END}), mask=Alternating(2))
    assert len(make_pool().answer([3], 9, drawing).tokens) == 3


def test_choices_begin_where_their_prompt_ends() -> None:
    pool = make_pool()
    request = pool.submit([3, 4, 5], 6, Drawing(), n=4)
    pool.run()
    assert [pool.answers[request, choice].tokens for choice in range(4)] == [follow(TABLE, 5, 6)] * 4
