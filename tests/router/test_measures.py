"""The numbers that routers are judged by, against cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.router.learning.calibration import Calibration, calibrate
from edgecloud.router.learning.logistic import fit, logit, sigmoid
from edgecloud.router.learning.measures import apgr, auc, brier, cpt, ece
from edgecloud.router.learning.rising import GRID, fit_rising, risen

RANDOM = np.random.default_rng(0)
WEAK = (RANDOM.random(4000) < 0.6).astype(float)
STRONG = (RANDOM.random(4000) < 0.8).astype(float)


def test_a_coin_recovers_half_of_the_gap_and_the_worst_order_less_than_none() -> None:
    assert apgr(RANDOM.random(4000), WEAK, STRONG) == pytest.approx(0.5, abs=0.05)
    assert apgr(STRONG - WEAK, WEAK, STRONG) > 1
    assert apgr(WEAK - STRONG, WEAK, STRONG) < 0


def test_a_curve_that_is_known_has_the_area_and_the_crossings_that_it_has() -> None:
    weak, strong = np.zeros(100), np.repeat([1.0, 0.0], 50)
    best_first = -np.arange(100.0)

    # All of the gap is recovered by the first half of the calls: a ramp, then a plateau.
    assert apgr(best_first, weak, strong) == pytest.approx(0.75)
    assert cpt(best_first, weak, strong, 0.5) == pytest.approx(25)
    assert cpt(best_first, weak, strong, 0.8) == pytest.approx(40)


def test_ties_do_not_favour_whoever_stands_first() -> None:
    weak, strong = np.zeros(4000), np.repeat([1.0, 0.0], 2000)

    assert apgr(np.zeros(4000), weak, strong) == pytest.approx(0.5, abs=0.05)


def test_chances_that_mean_what_they_say_have_no_calibration_error() -> None:
    chances = RANDOM.random(20_000)
    outcomes = (RANDOM.random(20_000) < chances).astype(float)

    assert ece(chances, outcomes) < 0.02
    assert ece(np.full(20_000, 0.9), outcomes) == pytest.approx(0.4, abs=0.02)
    assert brier(outcomes, outcomes) == 0


def test_auc_counts_pairs_in_the_right_order_and_half_of_the_ties() -> None:
    assert auc(np.array([0.1, 0.4, 0.8]), np.array([0.0, 0.0, 1.0])) == 1
    assert auc(np.array([0.5, 0.5]), np.array([0.0, 1.0])) == 0.5
    assert np.isnan(auc(np.array([0.5]), np.array([1.0])))


def test_calibration_mends_chances_that_are_too_sure_and_keeps_their_order() -> None:
    true = RANDOM.random(4000)
    outcomes = (RANDOM.random(4000) < true).astype(float)
    boasting = sigmoid(3 * logit(true))

    mended = calibrate(boasting, outcomes)

    assert ece(boasting, outcomes) > 0.1
    assert ece(mended(boasting), outcomes) < 0.03
    assert (np.diff(mended(np.linspace(0, 1, 101))) >= 0).all()


def test_calibration_never_turns_an_order_around_even_where_it_was_wrong() -> None:
    chances = RANDOM.random(500)
    against = calibrate(chances, 1 - chances)

    assert against.a >= 0
    assert against.b >= 0


def test_no_calibration_changes_nothing() -> None:
    assert Calibration()(np.array([0.2, 0.7])) == pytest.approx([0.2, 0.7])


def wavy(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Chances that miss to both sides, which no line in log-odds mends, and what came of them."""
    said = RANDOM.random(number)
    true = np.select([said < 0.3, said < 0.5, said < 0.7], [said, 0.3, 0.7], said)
    return said, (RANDOM.random(number) < true).astype(float)


def test_a_rising_curve_mends_what_a_formula_can_not() -> None:
    said, came = wavy(20_000)

    formula = calibrate(said, came)
    curve = fit_rising(said, came)

    assert ece(formula(said), came) > 0.03
    assert ece(risen(said[:, None], curve[None])[:, 0], came) < 0.02


@given(
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 1.0])), min_size=1, max_size=400),
)
def test_a_rising_curve_never_turns_two_questions_around_nor_ties_them(
    rows: list[tuple[float, float]],
) -> None:
    said, came = np.array(rows).T

    curve = fit_rising(said, came)

    assert (np.diff(curve) > 0).all()
    assert (curve >= 0).all()
    assert (curve <= 1).all()


def test_few_rows_hardly_bend_the_curve() -> None:
    said, came = wavy(20_000)

    few, many = fit_rising(said[:100], came[:100]), fit_rising(said, came)

    assert np.abs(few - GRID).max() < 0.05 < np.abs(many - GRID).max()


def test_each_model_has_its_own_curve() -> None:
    chances = np.array([[0.5, 0.5], [1.0, 1.0]])

    found = risen(chances, np.stack([GRID, GRID / 2]))

    assert found == pytest.approx(np.array([[0.5, 0.25], [1.0, 0.5]]))


def test_logistic_regression_finds_the_weights_that_made_the_data() -> None:
    inputs = RANDOM.normal(size=(20_000, 2))
    outcomes = (RANDOM.random(20_000) < sigmoid(inputs @ [1.0, -2.0] + 0.5)).astype(float)

    assert fit(inputs, outcomes, 1.0) == pytest.approx([1.0, -2.0, 0.5], abs=0.1)
    # What is known before is not learnt again.
    assert fit(inputs, outcomes, 1.0, offset=inputs @ [1.0, -2.0] + 0.5) == pytest.approx([0, 0, 0], abs=0.1)
