"""Prefix arithmetic against models that anyone can check: sets of cells, and loops over tokens."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud.local_engine.pacing import TILE_ROWS, PrefillPacer, split_budget, whole_tiles
from edgecloud.local_engine.prefix import CellLedger, common_prefix

tokens = st.lists(st.integers(0, 2), max_size=40)


@given(tokens, tokens)
def test_common_prefix_is_what_a_loop_finds(a: list[int], b: list[int]) -> None:
    expected = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    assert common_prefix(a, b) == expected


class CellSets:
    """The slow truth: which cells each sequence sees."""

    def __init__(self) -> None:
        self.cells: dict[int, list[int]] = {}
        self._fresh = itertools.count()

    def open(self, seq_id: int, parent: int | None, shared: int) -> None:
        self.cells[seq_id] = self.cells[parent][:shared] if parent is not None else []

    def grow(self, seq_id: int, count: int) -> None:
        self.cells[seq_id] += itertools.islice(self._fresh, count)

    def used(self) -> int:
        return len({cell for cells in self.cells.values() for cell in cells})


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from("oogggc"), st.integers(0, 5), st.integers(1, 9)), max_size=40),
)
def test_the_ledger_counts_what_sets_of_cells_count(actions: list[tuple[str, int, int]]) -> None:
    ledger, truth = CellLedger(), CellSets()
    for number, (action, pick, count) in enumerate(actions):
        # One of those that there are, counted from the latest.
        chosen = list(truth.cells)[-1 - pick] if pick < len(truth.cells) else None
        if action == "o":
            shared = min(count, len(truth.cells[chosen])) if chosen is not None else 0
            ledger.open(number, parent=chosen, shared=shared)
            truth.open(number, chosen, shared)
        elif chosen is not None and action == "g":
            ledger.grow(chosen, count)
            truth.grow(chosen, count)
        elif chosen is not None:
            ledger.close(chosen)
            del truth.cells[chosen]
        assert ledger.used == truth.used()


def test_an_heir_takes_over_the_cells_and_the_other_children() -> None:
    ledger = CellLedger()
    ledger.open(0)
    ledger.grow(0, 10)
    ledger.open(1, parent=0, shared=8)
    ledger.open(2, parent=0, shared=4)
    ledger.close(0)
    assert ledger.used == 8
    ledger.close(1)
    assert ledger.used == 4
    ledger.close(2)
    assert ledger.used == 0


def test_what_can_t_be_shared_is_a_bug_that_is_told() -> None:
    ledger = CellLedger()
    ledger.open(0)
    ledger.grow(0, 3)
    for seq_id, shared in ((0, 0), (1, 4)):
        with pytest.raises(ValueError, match="can't open"):
            ledger.open(seq_id, parent=0, shared=shared)


@given(st.integers(1, 600), st.lists(st.integers(1, 5000), max_size=12))
def test_a_split_budget_is_spent_and_the_oldest_gets_half(budget: int, remaining: list[int]) -> None:
    shares = split_budget(budget, remaining)
    assert sum(shares) == min(budget, sum(remaining))
    assert all(0 <= share <= left for share, left in zip(shares, remaining, strict=True))
    if remaining:
        assert shares[0] >= min(remaining[0], math.ceil(budget / 2))


def test_a_short_prompt_need_not_wait_for_a_long_one() -> None:
    assert split_budget(64, [3000, 500, 20]) == [32, 12, 20]


@given(st.floats(0.0001, 0.1), st.integers(1, 8))
def test_the_pacer_settles_where_a_step_takes_its_target_time(token_s: float, num_decoding: int) -> None:
    pacer = PrefillPacer(0.1, 512)
    for _ in range(60):
        size = pacer.budget(num_decoding) + num_decoding
        pacer.observe(size, size * token_s)
    rows = pacer.budget(num_decoding) + num_decoding
    affordable = 0.1 / token_s
    if rows == 512:
        assert affordable >= 480 - 1
    elif rows >= TILE_ROWS:
        assert rows % TILE_ROWS == 0
        assert 0.66 * rows - 1 <= affordable <= 1.34 * rows + TILE_ROWS / 2
    else:
        assert affordable - 1 - num_decoding <= rows <= max(affordable, PrefillPacer.MIN_CHUNK + num_decoding)


@pytest.mark.parametrize(
    ("rows", "whole"), [(1, 1), (47, 47), (48, 64), (64, 64), (95, 64), (97, 128), (300, 320), (512, 512)]
)
def test_a_step_fills_whole_tiles_of_the_attention(rows: int, whole: int) -> None:
    assert whole_tiles(rows) == whole


def test_alone_a_prompt_gets_larger_steps() -> None:
    pacer = PrefillPacer(0.1, 512)
    for _ in range(20):
        pacer.observe(64, 64 * 0.004)
    assert pacer.budget(0) > 2 * pacer.budget(1)


def test_a_step_of_a_few_tokens_says_little_of_what_a_token_costs() -> None:
    pacer = PrefillPacer(0.1, 512)
    before = pacer.token_s
    pacer.observe(PrefillPacer.MIN_CHUNK - 1, 60.0)
    assert pacer.token_s == before
