"""The bound on wrong answers: how the threshold follows what was seen, and when the tier turns itself off."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud.cache.control import AUDIT_RATE, MIN_PROBABILITY, WINDOW, Observations, Policy, decide


def traffic(
    num_lookups: int = 2000,
    *,
    wrong_at: float = 0.0,
    shift: float = 0.0,
    audits_wrong: int = 0,
    bound: float = 1.0,
    seed: int = 0,
) -> Observations:
    """Lookups whose candidates have the same answer as often as their logits (plus `shift`) say.

    As the cache has it: hits of the cold policy are served or audited, all others teach. `audits_wrong` more
    audits at a sure logit were wrong.
    """
    rng = np.random.default_rng(seed)
    cold = decide(Observations.of([]), bound)
    rows: list[tuple[float | None, ...]] = []
    for _ in range(num_lookups):
        logit = float(rng.normal(2.5, 2.0))
        same = float(rng.random() < 1 / (1 + math.exp(-(logit + shift))))
        if not cold.serves(logit, ""):
            rows.append((logit, 0, 0, 0, 0, same, 0))
        elif rng.random() < AUDIT_RATE:
            rows.append((logit, 0, 0, 0, 1, same, 0))
        else:
            rows.append((logit, 0, 0, 1, 0, None, 0))
    rows += [(9.0, 0, 0, 0, 1, 0.0, 0)] * audits_wrong
    return Observations.of(rows)


def truly_wrong(policy: Policy, *, shift: float = 0.0) -> float:
    """Wrong answers in 100 requests of the same traffic under a policy."""
    rng = np.random.default_rng(99)
    logits = rng.normal(2.5, 2.0, 100_000)
    q = np.array([policy.probability(logit, "") for logit in logits[:5000]])
    wrong = 1 / (1 + np.exp(logits[:5000] + shift))
    return 100 * float(np.mean(wrong * (q >= policy.threshold)))


def test_a_cold_cache_serves_what_is_nearly_sure() -> None:
    policy = decide(Observations.of([]), 1.0)
    assert policy.serves(6.0, "")
    assert not policy.serves(3.0, "")


# cases: R51
def test_the_edges_of_the_bound() -> None:
    assert not decide(traffic(), 0.0).serves(8.0, "")
    assert decide(traffic(), 100.0).threshold == MIN_PROBABILITY


@pytest.mark.parametrize("shift", [0.0, -1.0, 1.0])
def test_the_bound_holds_though_the_shipped_model_is_off(shift: float) -> None:
    policy = decide(traffic(WINDOW, shift=shift), 1.0)
    assert truly_wrong(policy, shift=shift) < 1.0
    assert policy.wrong_per_100[0] < policy.wrong_per_100[1] < policy.wrong_per_100[2] <= 1.001


def test_easier_traffic_is_served_more_freely() -> None:
    hard, easy = (decide(traffic(shift=shift), 1.0) for shift in (-1.5, 1.5))
    lowest = [min(x for x in np.arange(-2, 9, 0.1) if policy.serves(x, "")) for policy in (hard, easy)]
    assert lowest[1] < lowest[0]


def test_a_suspicion_is_a_veto_until_the_traffic_disproves_it() -> None:
    assert not decide(Observations.of([]), 1.0).serves(6.0, "replaced")
    harmless = [(3.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)] * 400
    policy = decide(Observations.of(harmless), 1.0)
    assert policy.probability(6.0, "replaced") > 0.99
    assert policy.probability(6.0, "added") < policy.probability(6.0, "")


def test_audits_that_were_wrong_raise_the_threshold() -> None:
    before, after = decide(traffic(), 1.0), decide(traffic(audits_wrong=2), 1.0)
    assert after.wrong_per_100[2] >= before.wrong_per_100[1]
    assert after.threshold > before.threshold


def test_blame_counts_against_the_bound() -> None:
    seen = traffic()
    blamed = seen._replace(blamed=np.where(seen.served == 1, 1.0, 0.0))
    assert decide(blamed, 1.0).threshold > decide(seen, 1.0).threshold


def test_a_broken_bound_turns_the_tier_off_and_says_so() -> None:
    policy = decide(traffic(audits_wrong=40), 1.0)
    assert "audited answers were wrong" in policy.off_because
    assert "not answered from the cache for now" in policy.off_because
    assert not policy.serves(9.0, "")
    assert decide(traffic(), 1.0).off_because == ""


def test_an_unknown_embedder_must_show_what_its_cosines_are_worth() -> None:
    assert not decide(Observations.of([]), 1.0, known=False).serves(5.0, "")
    learned = decide(traffic(WINDOW, shift=1.0), 1.0, known=False)
    assert learned.serves(7.0, "")


ROWS = st.tuples(
    st.one_of(st.none(), st.floats(-12, 12)),
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 1),
    st.one_of(st.none(), st.integers(0, 1)),
    st.integers(0, 1),
).map(lambda row: (-math.inf if row[0] is None else row[0], *row[1:]))


@settings(max_examples=60)
@given(st.lists(ROWS, max_size=60), st.floats(0, 100))
def test_any_experience_gives_a_policy_that_is_monotone(rows, bound: float) -> None:  # type: ignore[no-untyped-def]
    policy = decide(Observations.of(rows), bound)
    values = [policy.probability(logit, "") for logit in (-9.0, 0.0, 3.0, 9.0)]
    assert values == sorted(values)
    assert policy.threshold >= MIN_PROBABILITY
    assert all(math.isfinite(each) for each in policy.wrong_per_100)
