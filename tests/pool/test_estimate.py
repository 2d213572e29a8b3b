"""The length estimate learns, keeps its promise whatever lengths do, and says how well it did."""

from __future__ import annotations

import gc
import itertools
import math
import random
import weakref
from collections.abc import Callable

import pytest

from edgecloud.pool.estimate import LengthEstimate

NUM_ANSWERS = 3000
LIMIT = 1024
IDS = itertools.count()


class Answer:
    """Would have `length` tokens, and may have `max_tokens`."""

    def __init__(self, length: int, max_tokens: int = LIMIT) -> None:
        self.id = next(IDS)
        self.length = min(length, max_tokens)
        self.max_tokens = max_tokens
        self.cut = length > max_tokens
        self.num_output = 0
        self.predicted = 0


def serve(estimate: LengthEstimate, answers: list[Answer], num_running: int) -> float:
    """So many at once, each a token a step, the next as soon as one ends. The share that was no longer than
    predicted."""
    waiting, running = answers[::-1], list[Answer]()
    while waiting or running:
        while waiting and len(running) < num_running:
            answer = waiting.pop()
            answer.predicted = estimate.begin(answer, answer.max_tokens)
            running.append(answer)
        for answer in running:
            answer.num_output += 1
            if answer.num_output > answer.predicted:
                estimate.outgrow(answer)
            if answer.num_output == answer.length:
                estimate.end(answer, cut=answer.cut)
        running = [answer for answer in running if answer.num_output < answer.length]
    return sum(answer.length <= answer.predicted for answer in answers) / len(answers)


def answer_all(estimate: LengthEstimate, lengths: list[int]) -> None:
    """One after the other."""
    serve(estimate, [Answer(length) for length in lengths], 1)


def exponential(source: random.Random, mean: float) -> int:
    return int(source.expovariate(1 / mean)) + 1


Workload = Callable[[random.Random, float], int]
WORKLOADS: dict[str, Workload] = {
    "lognormal": lambda source, _: int(source.lognormvariate(3.5, 0.7)) + 1,
    "exponential": lambda source, _: exponential(source, 60),
    "short and long": lambda source, _: source.choice((7, 7, 7, 7, 7, 300)) + source.randrange(20),
    "heavy tail": lambda source, _: int(10 * source.paretovariate(1.1)),
    "seven times longer": lambda source, at: exponential(source, 20 if at < 0.5 else 140),
    "seven times shorter": lambda source, at: exponential(source, 140 if at < 0.5 else 20),
    "up and down": lambda source, at: exponential(source, 60 + 45 * math.sin(20 * at)),
}


@pytest.mark.parametrize("num_running", [1, 16, 128])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_nine_of_ten_answers_are_no_longer_than_predicted(workload: str, num_running: int) -> None:
    source, estimate = random.Random(1), LengthEstimate(0.9)
    lengths = [WORKLOADS[workload](source, number / NUM_ANSWERS) for number in range(NUM_ANSWERS)]
    covered = serve(estimate, [Answer(length) for length in lengths], num_running)
    assert 0.885 < covered < 0.935


@pytest.mark.parametrize("target", [0.5, 0.8, 0.95])
def test_another_share_can_be_promised(target: float) -> None:
    source, estimate = random.Random(2), LengthEstimate(target)
    answers = [Answer(exponential(source, 50)) for _ in range(NUM_ANSWERS)]
    assert serve(estimate, answers, 32) == pytest.approx(target, abs=0.02)
    assert estimate.coverage == pytest.approx(target, abs=0.06)


def test_the_prediction_is_no_larger_than_the_promise_needs() -> None:
    source, estimate = random.Random(3), LengthEstimate(0.9)
    answers = [Answer(exponential(source, 50)) for _ in range(NUM_ANSWERS)]
    serve(estimate, answers, 32)
    late = [answer.predicted for answer in answers[1000:]]
    # Nine of ten are below 2.3 times the mean.
    assert sum(late) / len(late) == pytest.approx(2.3 * 50, rel=0.2)


def test_before_anything_is_known_the_limit_is_the_estimate() -> None:
    estimate = LengthEstimate()
    assert estimate.predict(0, 100) == 100
    assert math.isnan(estimate.coverage)
    answer_all(estimate, [10] * 9)
    assert estimate.predict(0, 100) == 10
    assert estimate.coverage == 1


def test_short_answers_that_end_first_do_not_shorten_the_estimate() -> None:
    estimate = LengthEstimate()
    answers = [Answer(3 if number % 8 == 0 else 200) for number in range(128)]
    for answer in answers:
        estimate.begin(answer, LIMIT)
    for answer in answers:
        answer.num_output = 3
        if answer.length == 3:
            estimate.end(answer, cut=False)
    assert estimate.predict(0, 500) > 30


def test_an_answer_cut_at_its_limit_does_not_say_how_long_it_would_have_been() -> None:
    estimate = LengthEstimate()
    serve(estimate, [Answer(100, max_tokens=16) for _ in range(100)], 4)
    assert estimate.coverage == 1
    assert estimate.predict(0, 500) == 500


def test_an_answer_that_is_cancelled_is_not_judged_but_was_that_long() -> None:
    estimate = LengthEstimate()
    answer_all(estimate, [10] * 50)
    level = estimate.level
    for _ in range(50):
        answer = Answer(300)
        estimate.begin(answer, LIMIT)
        answer.num_output = 40
        estimate.drop(answer)
    assert (estimate.level, estimate.coverage) == (level, 1)
    assert estimate.predict(0, 500) > 40


def test_a_miss_is_known_when_it_happens_and_counts_once() -> None:
    estimate = LengthEstimate()
    answer_all(estimate, [10] * 50)
    answer, level = Answer(90), estimate.level
    assert estimate.begin(answer, LIMIT) == 10
    answer.num_output = 11
    estimate.outgrow(answer)
    missed = estimate.level
    assert missed > level
    estimate.outgrow(answer)
    answer.num_output = 90
    estimate.end(answer, cut=False)
    assert estimate.level == missed
    assert estimate.coverage == pytest.approx(50 / 51)


def test_misses_that_were_under_way_are_made_up_for() -> None:
    estimate = LengthEstimate(0.9, step=0.5)
    answer_all(estimate, [10] * 50)
    answers = [Answer(90) for _ in range(64)]
    for answer in answers:
        assert estimate.begin(answer, LIMIT) == 10
    for answer in answers:
        answer.num_output = 11
        estimate.outgrow(answer)
    assert estimate.level > 1
    assert estimate.predict(0, 777) == 777


def test_answers_of_one_length_do_not_leave_the_next_without_a_chance() -> None:
    estimate = LengthEstimate(0.9)
    answer_all(estimate, [40] * 2000)
    assert estimate.predict(0, LIMIT) == 40
    assert estimate.level == pytest.approx(0.8)


def test_what_is_already_longer_than_most_is_expected_to_go_on() -> None:
    estimate = LengthEstimate(0.5, step=0.0)
    answer_all(estimate, [10, 20, 30, 40])
    assert [estimate.predict(done, 100) for done in (0, 10, 25, 39)] == [30, 30, 40, 40]
    # Longer than anything seen. One ended for each 25 tokens: half of them go on for 18.
    assert estimate.predict(40, 100) == 58
    assert estimate.predict(90, 100) == 100


def test_no_more_than_the_limit_is_expected() -> None:
    estimate = LengthEstimate()
    answer_all(estimate, [500] * 20)
    assert estimate.predict(0, 64) == estimate.mean(0, 64) == 64
    assert estimate.mean(60, 64) == 64


def test_many_are_as_long_as_their_mean_and_not_as_what_each_does_not_exceed() -> None:
    estimate = LengthEstimate()
    answer_all(estimate, [10] * 80 + [200] * 20)
    assert estimate.mean(0, 1000) < 70 < 200 <= estimate.predict(0, 1000)
    assert LengthEstimate().mean(0, 1000) == 1000


def test_old_answers_are_forgotten() -> None:
    estimate = LengthEstimate(0.5, window=8)
    answer_all(estimate, [900] * 400 + [5] * 8)
    assert estimate.predict(0, 1000) == 5
    assert estimate.coverage == 1.0


def test_of_an_answer_that_ended_only_its_length_is_kept() -> None:
    estimate = LengthEstimate()
    ended, dropped = Answer(5), Answer(5)
    for answer in (ended, dropped):
        estimate.begin(answer, LIMIT)
    estimate.end(ended, cut=False)
    estimate.drop(dropped)
    kept = [weakref.ref(ended), weakref.ref(dropped)]
    del ended, dropped, answer
    gc.collect()
    assert [each() for each in kept] == [None, None]
