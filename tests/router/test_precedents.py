"""Toss-ups go where a like question went; whatever is clear goes where it pays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.router.decision import Decision
from edgecloud.router.facts import Facts, Privacy, Spread
from edgecloud.router.filter import filter
from edgecloud.router.ledger.precedents import KEPT
from edgecloud.router.precedents import ALIKE, TOSS_UP, Precedents, precedent_of
from edgecloud.router.rank import order, rank
from edgecloud.router.world import Speed
from edgecloud.types import new_id

from .worlds import FixedQuality, make_facts, make_hosted, make_local, make_settings, make_world

EVEN = Speed(Spread(0, 0), Spread(1000, 1000), Spread(50, 50))
HALVES = 2e-3
"""What vectors of 16-bit floats are off by, as a cosine."""
WORLD = make_world(make_local(speed=EVEN), make_hosted(speed=EVEN, price=make_local().price))


def asked(angle: float, **changes: Any) -> Facts:
    """A question whose vector is that far, in cosines, from the one at 1."""
    vector = (angle, float(np.sqrt(1 - angle**2)))
    return make_facts(**{"vector": vector, "fingerprint": "two", **changes})


def decide(laptop: float, cloud: float, **facts: Any) -> Decision:
    configured = make_settings()
    request = make_facts(**facts)
    quality = FixedQuality({"laptop": laptop, "cloud": cloud})
    return rank(request, filter(request, WORLD, configured), WORLD, quality, configured)


# ---------------------------------------------------------------------------------------------- remembering


def note(precedents: Precedents, facts: Facts, engine: str, chat_id: str | None = None) -> None:
    """As a new request that is like `facts`."""
    found = precedent_of(dataclasses.replace(facts, request_id=new_id("req")), engine, chat_id)
    assert found is not None
    precedents.note(found)


def test_a_question_like_one_before_finds_who_was_first_for_it() -> None:
    precedents = Precedents()
    note(precedents, asked(1.0), "cloud")
    note(precedents, asked(0.0), "laptop")

    assert precedents.of(asked(0.95)) == "cloud"
    assert precedents.of(asked(0.1)) == "laptop"
    assert precedents.of(asked(0.7)) is None
    assert precedents.of(make_facts()) is None


def test_of_two_that_are_as_like_the_latest_counts() -> None:
    precedents = Precedents()
    for engine in ("cloud", "laptop"):
        note(precedents, asked(1.0), engine)

    assert precedents.of(asked(1.0)) == "laptop"


@pytest.mark.parametrize("other", [{"tenant": "key-b"}, {"fingerprint": "another"}, {"mode": "quality"}])
def test_other_peoples_questions_other_embedders_and_other_modes_are_no_precedent(other: Any) -> None:
    precedents = Precedents()
    note(precedents, asked(1.0, **other), "cloud")

    assert precedents.of(asked(1.0)) is None


@pytest.mark.parametrize("why", [{"private": True}, {"privacy": Privacy(local_only=True)}])
def test_a_private_question_is_no_precedent_and_neither_is_one_without_a_vector(why: Any) -> None:
    assert precedent_of(asked(1.0, **why), "laptop", None) is None
    assert precedent_of(make_facts(), "laptop", None) is None


def test_vectors_of_another_width_are_not_compared() -> None:
    precedents = Precedents()
    note(precedents, asked(1.0), "cloud")
    wider = make_facts(vector=(1.0, 0.0, 0.0), fingerprint="two")

    assert precedents.of(wider) is None
    note(precedents, wider, "laptop")
    assert precedents.of(wider) == "laptop"
    assert precedents.of(asked(1.0)) == "cloud"


def test_the_oldest_are_forgotten() -> None:
    precedents = Precedents()
    note(precedents, asked(1.0), "cloud")
    for _ in range(KEPT - 1):
        note(precedents, asked(0.0), "laptop")
    assert precedents.of(asked(1.0)) == "cloud"

    note(precedents, asked(0.0), "laptop")

    assert precedents.of(asked(1.0)) is None


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.sampled_from("ab"), st.sampled_from([None, "key"])), max_size=30),
    st.floats(-1, 1),
)
def test_what_is_found_is_as_like_as_any(notes: list[tuple[float, str, str | None]], angle: float) -> None:
    precedents = Precedents()
    for at, engine, tenant in notes:
        note(precedents, asked(at, tenant=tenant), engine)

    found = precedents.of(asked(angle))

    here = np.array(asked(angle).vector, np.float32)
    alike = {
        engine: max(
            float(here @ np.array(asked(at).vector, np.float32))
            for at, who, t in notes
            if (who, t) == (engine, None)
        )
        for engine in {who for _, who, tenant in notes if tenant is None}
    }
    if found is None:
        assert all(cosine < ALIKE + HALVES for cosine in alike.values())
    else:
        assert alike[found] >= max(alike.values()) - HALVES


# ------------------------------------------------------------------------------------------------- deciding


def test_a_toss_up_goes_where_a_like_question_went() -> None:
    ahead = TOSS_UP * 0.9

    assert decide(0.5, 0.5 + ahead).chosen.engine == "cloud"
    decision = decide(0.5, 0.5 + ahead, precedent="laptop")

    assert [each.engine for each in decision.candidates] == ["laptop", "cloud"]
    assert decision.reason == "a toss-up with cloud, and a question like it went here"
    sentences = [each.sentence for each in decision.counterfactuals]
    assert "It would have been cloud if no question like it had been asked before" in sentences


def test_what_is_clear_is_not_decided_by_a_precedent() -> None:
    decision = decide(0.5, 0.5 + TOSS_UP * 1.1, precedent="laptop")

    assert decision.chosen.engine == "cloud"
    assert "more likely right" in decision.reason


@pytest.mark.parametrize(("ahead", "is_one"), [(TOSS_UP * 0.9, True), (TOSS_UP * 1.1, False)])
def test_only_a_toss_up_asks_for_a_precedent_and_is_decided_as_if_it_had_been_known(
    ahead: float, is_one: bool
) -> None:
    configured, request = make_settings(), make_facts()
    quality = FixedQuality({"laptop": 0.5, "cloud": 0.5 + ahead})
    ranking = order(request, filter(request, WORLD, configured), WORLD, quality, configured)

    assert (ranking.following is not None) is is_one
    if ranking.following is not None:
        followed = ranking.following("laptop").explained()
        assert followed == decide(0.5, 0.5 + ahead, precedent="laptop")
        assert followed.chosen.engine == "laptop"


def test_a_precedent_that_was_filtered_out_is_none() -> None:
    assert decide(0.5, 0.51, precedent="cloud", private=True).chosen.engine == "laptop"
    assert decide(0.5, 0.51, precedent="gone").chosen.engine == "cloud"


def test_the_counterfactual_counts_the_lead_that_a_precedent_has() -> None:
    def needed(precedent: str | None) -> float:
        decision = decide(0.6, 0.5, precedent=precedent)
        return next(each.value for each in decision.counterfactuals if each.what == "gain")

    assert needed(None) == pytest.approx(0.1)
    assert needed("laptop") == pytest.approx(0.1 + TOSS_UP)
    assert decide(0.6, 0.5 + needed("laptop") + 0.001, precedent="laptop").chosen.engine == "cloud"
    assert decide(0.6, 0.5 + needed("laptop") - 0.001, precedent="laptop").chosen.engine == "laptop"


@given(st.lists(st.floats(-TOSS_UP / 2, TOSS_UP / 2), min_size=1, max_size=20))
def test_paraphrases_on_the_line_all_go_the_same_way(moves: list[float]) -> None:
    precedents = Precedents()
    firsts = []
    for move in moves:
        facts = asked(0.95)
        facts = dataclasses.replace(facts, precedent=precedents.of(facts))
        first = decide(0.5, 0.5 + move, precedent=facts.precedent).chosen.engine
        note(precedents, facts, first)
        firsts.append(first)

    assert len(set(firsts)) == 1
