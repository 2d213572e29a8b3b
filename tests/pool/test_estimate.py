"""The length estimate learns, keeps its promise when lengths change, and says how well it did."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from edgecloud.pool.estimate import LengthEstimate


def lengths(seed: int, mean: float) -> Iterator[int]:
    source = random.Random(seed)
    while True:
        yield int(source.expovariate(1 / mean)) + 1


def serve(estimate: LengthEstimate, source: Iterator[int], count: int, max_tokens: int = 1000) -> float:
    """Answer one after the other; the share that was no longer than predicted."""
    covered = 0
    for _ in range(count):
        predicted, actual = estimate.predict(0, max_tokens), min(next(source), max_tokens)
        covered += actual <= predicted
        estimate.observe(predicted, actual)
    return covered / count


def test_before_anything_is_known_the_limit_is_the_estimate() -> None:
    estimate = LengthEstimate(num_prior=4)
    assert estimate.predict(0, 100) == 100
    assert math.isnan(estimate.coverage)
    for _ in range(4):
        estimate.observe(100, 10)
    assert estimate.predict(0, 100) == 10


@pytest.mark.parametrize("target", [0.5, 0.8, 0.95])
def test_the_promised_share_is_covered(target: float) -> None:
    estimate = LengthEstimate(target)
    assert serve(estimate, lengths(1, 50), 3000) == pytest.approx(target, abs=0.03)
    assert estimate.coverage == pytest.approx(target, abs=0.06)


def test_the_promise_holds_when_answers_get_six_times_longer() -> None:
    estimate = LengthEstimate(0.9)
    serve(estimate, lengths(2, 30), 1000)
    before = estimate.predict(0, 1000)
    assert serve(estimate, lengths(3, 180), 1500) == pytest.approx(0.9, abs=0.03)
    assert estimate.predict(0, 1000) > 3 * before


def test_what_is_already_longer_than_most_is_expected_to_go_on() -> None:
    estimate = LengthEstimate(0.5, num_prior=1, step=0.0)
    for length in (10, 20, 30, 40):
        estimate.observe(0, length)
    assert [estimate.predict(done, 100) for done in (0, 10, 25, 39)] == [20, 30, 30, 40]
    assert estimate.predict(40, 100) == 80, "longer than anything seen: as much again"
    assert estimate.predict(60, 100) == 100


def test_no_more_than_the_limit_is_expected() -> None:
    estimate = LengthEstimate(num_prior=1)
    estimate.observe(0, 500)
    assert estimate.predict(0, 64) == 64


def test_old_answers_are_forgotten() -> None:
    estimate = LengthEstimate(0.9, window=8, num_prior=1, step=0.0)
    for length in [900] * 8 + [5] * 8:
        estimate.observe(length, length)
    assert estimate.predict(0, 1000) == 5
    assert estimate.coverage == 1.0


def test_missing_too_often_ends_at_the_limit() -> None:
    estimate = LengthEstimate(0.9, step=0.5, num_prior=1)
    for _ in range(3):
        estimate.observe(1, 10)
    assert estimate.level == 1
    assert estimate.predict(0, 777) == 777
