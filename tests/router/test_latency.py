"""What is learnt of an engine's speed."""

from __future__ import annotations

import json

import pytest

from edgecloud.router.latency import LOCAL_PRIOR, PRIOR_WEIGHT, REMOTE_PRIOR, Estimates, quantile
from edgecloud.types import Timings, Usage


def remote(
    ttft_s: float, prompt: int = 20, completion: int = 100, decode_s: float = 2.0
) -> tuple[Usage, Timings]:
    return Usage(prompt, completion), Timings(ttft_s=ttft_s, decode_s=decode_s)


def test_before_the_first_answer_the_prior_speaks() -> None:
    speed = Estimates(LOCAL_PRIOR).speed
    assert (speed.num_samples, speed.decode.p50) == (0, LOCAL_PRIOR.decode_rate)


def test_answers_take_the_place_of_the_prior() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    for _ in range(10):
        estimates.learn(*remote(0.2))
    assert estimates.speed.decode.p50 == pytest.approx(50.0)
    assert estimates.wait_s.p50 == pytest.approx(0.2, abs=0.02)


def test_the_tail_of_a_rate_is_its_slow_end() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    for decode_s in [1.0] * 8 + [10.0] * 2:
        estimates.learn(*remote(0.2, decode_s=decode_s))
    assert estimates.decode_rate.p50 == pytest.approx(100.0)
    assert estimates.decode_rate.p90 < 30.0


def test_long_prompts_teach_the_prefill_rate_of_an_engine_that_says_nothing() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    for _ in range(8):
        estimates.learn(*remote(0.1, prompt=10))
    for _ in range(8):
        estimates.learn(*remote(2.1, prompt=2000))
    assert estimates.prefill_rate.p50 == pytest.approx(1000.0, rel=0.02)
    assert estimates.ttft_s(4000).p50 == pytest.approx(4.1, rel=0.05)
    assert estimates.ttft_s(4000, cached_tokens=4000).p50 < 0.2


def test_what_was_cached_is_no_work() -> None:
    estimates = Estimates(LOCAL_PRIOR)
    for _ in range(8):
        estimates.learn(Usage(1000, 50, cached_tokens=900), Timings(prefill_s=0.5, ttft_s=1.5, decode_s=1.0))
    assert estimates.prefill_rate.p50 == pytest.approx(200.0)


def test_the_slow_tail_of_a_first_token_is_that_of_waiting_and_of_reading() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    wait, rate = estimates.wait_s, estimates.prefill_rate
    assert estimates.ttft_s(1000, 400).p90 == pytest.approx(wait.p90 + 600 / rate.p90)


def test_how_long_answers_are_is_said_once_enough_are_known() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    for _ in range(2 * PRIOR_WEIGHT - 1):
        estimates.learn(*remote(0.2, completion=70))
    assert estimates.answer_tokens is None
    estimates.learn(*remote(0.2, completion=70))
    assert estimates.answer_tokens is not None
    assert estimates.answer_tokens.p50 == pytest.approx(70.0)


def test_an_engine_that_says_what_it_waited_for_is_believed() -> None:
    estimates = Estimates(LOCAL_PRIOR)
    for _ in range(8):
        estimates.learn(Usage(100, 50), Timings(queue_s=1.0, prefill_s=0.5, ttft_s=1.5, decode_s=1.0))
    assert estimates.wait_s.p50 == pytest.approx(1.0)
    assert estimates.prefill_rate.p50 == pytest.approx(200.0)


def test_a_change_is_learnt_within_the_answers_kept() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    for _ in range(200):
        estimates.learn(*remote(0.1))
    for _ in range(64):
        estimates.learn(*remote(3.0))
    assert estimates.wait_s.p50 == pytest.approx(3.0, abs=0.1)


def test_slow_is_far_beyond_its_own_tail_and_never_said_of_a_stranger() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    for _ in range(PRIOR_WEIGHT - 1):
        estimates.learn(*remote(2.0))
    assert not estimates.is_slow(100.0, 20)
    estimates.learn(*remote(2.0))
    assert estimates.is_slow(100.0, 20)
    for _ in range(10):
        estimates.learn(*remote(2.0))
    assert not estimates.is_slow(7.0, 20)
    assert estimates.is_slow(9.0, 20)


def test_what_was_learnt_survives_as_json_and_nonsense_in_it_is_left_out() -> None:
    estimates, other = Estimates(REMOTE_PRIOR), Estimates(REMOTE_PRIOR)
    for number in range(20):
        estimates.learn(*remote(0.1 * number))
    other.load_json(json.loads(json.dumps(estimates.to_json())))
    assert other.speed == estimates.speed
    damaged = Estimates(REMOTE_PRIOR)
    damaged.load_json({"wait": ["x", None, -1, True, 1e300], "decode": 3, "nobody": [1]})
    damaged.load_json([1, 2])
    assert damaged.speed == Estimates(REMOTE_PRIOR).speed


def test_an_answer_of_nothing_teaches_nothing() -> None:
    estimates = Estimates(REMOTE_PRIOR)
    estimates.learn(Usage(), Timings())
    assert estimates.speed == Estimates(REMOTE_PRIOR).speed


def test_quantiles_lie_between_their_neighbours() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([0.0, 10.0], 0.9) == pytest.approx(9.0)
    assert quantile([5.0], 0.1) == 5.0
