"""The curve of lengths counts what still runs, and goes on behind what has ended."""

from __future__ import annotations

import math

import pytest

from edgecloud.pool.survival import Survival


def test_of_whole_answers_it_is_the_quantile_that_also_holds_for_the_next() -> None:
    curve = Survival(range(10, 200, 10))
    # 19 answers cut the line into 20 parts, and the next falls into each as likely as into another.
    assert [curve.quantile(level) for level in (0.5, 0.9, 0.95)] == [100, 180, 190]


def test_behind_the_longest_answers_end_at_the_rate_of_all() -> None:
    # One for each 5 tokens; one in nine is longer than 8, as far as eight answers can tell.
    curve = Survival([2, 3, 4, 5, 5, 6, 7, 8])
    assert curve.quantile(8 / 9) == 8
    assert curve.quantile(0.9) == 8 + math.ceil(5 * math.log(10 / 9))
    assert curve.quantile(0.99) == 8 + math.ceil(5 * math.log(100 / 9))
    assert curve.quantile(0.9, 30) == 30 + math.ceil(5 * math.log(10))


def test_what_still_runs_is_longer_than_it_is_now() -> None:
    # At risk, with the next: 8 at 10, 5 at 20 (two left at 15), 3 at 30 (one left at 20).
    curve = Survival([10, 20, 30], [15, 15, 20, 40])
    left = [7 / 8, 7 / 8 * 4 / 5, 7 / 8 * 4 / 5 * 2 / 3]
    for share, length in zip(left, (10, 20, 30), strict=True):
        assert curve.quantile(1 - share - 1e-6) == length
        assert curve.quantile(1 - share + 1e-6) != length
    assert curve.quantile(0.9) == 30 + math.ceil(150 / 3 * math.log(10 * left[-1]))


def test_short_answers_that_end_first_do_not_speak_for_those_that_run() -> None:
    ended = [3] * 16
    assert Survival(ended).quantile(0.9) == 3
    assert Survival(ended, [4] * 112).quantile(0.9) == 71


def test_an_answer_that_has_some_is_compared_with_those_that_had_as_many() -> None:
    curve = Survival([10, 20, 30, 40])
    assert [curve.quantile(0.5, num_output) for num_output in (0, 10, 25)] == [30, 30, 40]
    assert [curve.quantile(0.0, num_output) for num_output in (9, 10)] == [10, 20]


@pytest.mark.parametrize("curve", [Survival(), Survival(censored=[5, 6]), Survival([0], [0])])
def test_where_nothing_has_ended_nothing_is_known(curve: Survival) -> None:
    assert curve.quantile(0.5) is None


def test_all_answers_have_no_quantile() -> None:
    assert Survival([10] * 50).quantile(1.0) is None


def test_what_is_left_on_average_is_the_area_under_the_rest_of_the_curve() -> None:
    # Of four, the next among them: 3/4 are longer than 10, 1/2 than 20, 1/4 than 30; one ends each 20 tokens.
    curve = Survival([10, 20, 30])
    assert curve.mean_left(0) == pytest.approx(10 + 7.5 + 5 + 5)
    assert curve.mean_left(10) == pytest.approx((7.5 + 5 + 5) / 0.75)
    assert curve.mean_left(15) == pytest.approx(5 + (5 + 5) / 0.75)
    assert curve.mean_left(30) == curve.mean_left(99) == pytest.approx(20)
    assert Survival([], [7]).mean_left(0) is None
