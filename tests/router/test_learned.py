"""What is believed of engines: by outcomes of the model, of models like it, and by the user's verdicts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from edgecloud.router.learned import Corrections
from edgecloud.router.learning.speakers import signature, voice_of
from edgecloud.router.priors import PriorQuality
from edgecloud.router.world import EngineView

from .learning_rows import (
    DIMENSIONS,
    EASY,
    ELSEWHERE,
    HARD,
    LARGE,
    SMALL,
    facts_at,
    fitted,
    make_evidence,
    make_quality,
)
from .worlds import make_hosted, make_local

LAPTOP, CLOUD = make_local(model=SMALL), make_hosted(model=LARGE)


def width(quality: object, view: EngineView, vector: np.ndarray) -> float:
    estimate = quality.predict(facts_at(vector), [view])[view.name]  # type: ignore[attr-defined]
    return float(estimate.high - estimate.low)


def mean(quality: object, view: EngineView, vector: np.ndarray) -> float:
    return float(quality.predict(facts_at(vector), [view])[view.name].mean)  # type: ignore[attr-defined]


def test_an_engine_with_known_outcomes_has_its_own() -> None:
    quality = make_quality()

    assert mean(quality, LAPTOP, EASY) > 0.8
    assert mean(quality, LAPTOP, HARD) < 0.25
    assert mean(quality, CLOUD, HARD) > 0.7
    assert quality.predict(facts_at(HARD), [CLOUD])["cloud"].source == f"known outcomes of {LARGE}"


def test_an_engine_without_outcomes_is_between_those_of_its_size_with_a_wider_interval() -> None:
    quality = make_quality()
    middle, larger = make_hosted(model="other-20b"), make_hosted(model="other-60b")

    assert mean(quality, LAPTOP, HARD) < mean(quality, middle, HARD) < mean(quality, larger, HARD)
    assert width(quality, middle, HARD) > width(quality, LAPTOP, HARD)
    assert "20 billion" in quality.predict(facts_at(HARD), [middle])["cloud"].source


def test_smaller_than_all_known_models_is_worse_than_all_of_them() -> None:
    quality = make_quality()

    assert mean(quality, make_local(model="tiny-135m"), EASY) < mean(quality, LAPTOP, EASY)


def test_far_from_all_rows_intervals_are_wider_and_it_is_said() -> None:
    quality = make_quality()

    assert width(quality, LAPTOP, ELSEWHERE) > width(quality, LAPTOP, HARD)
    assert "far from all of them" in quality.predict(facts_at(ELSEWHERE), [LAPTOP])["laptop"].source


@pytest.mark.parametrize(
    "changes",
    [{"vector": None}, {"fingerprint": "another embedder"}],
)
def test_without_a_vector_of_the_same_embedder_it_is_the_prior(changes: dict[str, Any]) -> None:
    facts = dataclasses.replace(facts_at(HARD), **changes)

    assert make_quality().predict(facts, [LAPTOP, CLOUD]) == PriorQuality().predict(facts, [LAPTOP, CLOUD])
    assert make_quality().neighbours(facts) == ()


# ------------------------------------------------------------------------------------------------- verdicts


def test_thumbs_down_in_a_cluster_lower_the_engine_there_and_nowhere_else() -> None:
    before = make_quality()
    chances = [mean(before, LAPTOP, EASY)]
    for count in (1, 3, 10):
        after = make_quality(evidence=make_evidence(np.stack([EASY] * count), 0.0))
        chances.append(mean(after, LAPTOP, EASY))

    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < 0.35 < chances[0]
    assert mean(after, LAPTOP, HARD) == pytest.approx(mean(before, LAPTOP, HARD))
    assert mean(after, CLOUD, EASY) == pytest.approx(mean(before, CLOUD, EASY))
    assert "your verdicts nearby" in after.predict(facts_at(EASY), [LAPTOP])["laptop"].source


def test_verdicts_make_an_unknown_engine_known() -> None:
    unknown = make_local(model="nobody-knows")
    learned = make_quality(evidence=make_evidence(np.stack([HARD] * 20), 1.0, model="nobody-knows"))

    assert mean(learned, unknown, HARD) > mean(make_quality(), unknown, HARD)
    assert width(learned, unknown, HARD) < 0.8 * width(make_quality(), unknown, HARD)


def test_verdicts_on_the_model_that_was_there_before_say_nothing_of_the_new_one() -> None:
    learned = make_quality(evidence=make_evidence(np.stack([EASY] * 10), 0.0, model="replaced-7b"))

    assert mean(learned, LAPTOP, EASY) == pytest.approx(mean(make_quality(), LAPTOP, EASY))


def test_a_key_does_not_steer_the_requests_of_another() -> None:
    others = make_evidence(np.stack([EASY] * 10), 0.0, tenants=np.full(10, "key-a"))
    learned = make_quality(evidence=others)

    mine = learned.predict(facts_at(EASY, tenant="key-b"), [LAPTOP])["laptop"].mean
    theirs = learned.predict(facts_at(EASY, tenant="key-a"), [LAPTOP])["laptop"].mean

    assert mine == pytest.approx(mean(make_quality(), LAPTOP, EASY))
    assert theirs < mine
    assert all(each.id.startswith("row/") for each in learned.neighbours(facts_at(EASY, tenant="key-b")))


def test_neighbours_are_the_nearest_questions_with_their_scores_own_verdicts_among_them() -> None:
    learned = make_quality(evidence=make_evidence(HARD[None], 1.0))

    found = learned.neighbours(facts_at(HARD))

    assert found[0].id == "req-0"
    assert found[0].scores == {"laptop": 1.0}
    assert set(found[1].scores) == {SMALL, LARGE}
    assert [each.similarity for each in found] == sorted((each.similarity for each in found), reverse=True)


def test_a_correction_moves_only_its_own_engine() -> None:
    inputs = DIMENSIONS + fitted().rows.features.shape[1]
    weights = np.append(np.zeros(inputs), -2.0)
    learned = make_quality(corrections=Corrections(3, {("laptop", SMALL): weights}))

    assert mean(learned, LAPTOP, EASY) < mean(make_quality(), LAPTOP, EASY) - 0.05
    assert mean(learned, CLOUD, EASY) == pytest.approx(mean(make_quality(), CLOUD, EASY))
    assert learned.version == "outcomes-test+trained-3"


def test_a_correction_that_was_trained_on_other_features_is_not_used() -> None:
    old = make_quality(corrections=Corrections(3, {("laptop", SMALL): np.full(DIMENSIONS + 15, -2.0)}))

    assert mean(old, LAPTOP, EASY) == pytest.approx(mean(make_quality(), LAPTOP, EASY))


# ------------------------------------------------------------------------------------------------- speakers


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("hf:Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", "qwen2.5-7b-instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-instruct"),
        ("/models/gemma-2-9b-it-Q4_K_M.gguf", "gemma-2-9b-it"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-instruct-v0.3"),
    ],
)
def test_a_model_is_the_same_however_it_is_packed(name: str, other: str) -> None:
    assert signature(name) == signature(other)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("qwen2.5-14b-instruct", "qwen2.5-7b-instruct"),
        ("DeepSeek-R1-Distill-Llama-3.1-8B", "llama-3.1-8b-instruct"),
        ("codegemma-7b", "gemma-7b"),
        ("gpt-4o", "gpt-4-1106-preview"),
    ],
)
def test_another_size_or_a_descendant_is_another_model(name: str, other: str) -> None:
    assert signature(name) != signature(other)


def test_specialists_speak_for_nobody_but_themselves() -> None:
    models = ("codegemma-7b", "mistral-7b-instruct-v0.3")

    assert [speaker.column for speaker in voice_of(make_local(model="other-7b"), models).speakers] == [1]
    assert [speaker.column for speaker in voice_of(make_local(model="codegemma-7b"), models).speakers] == [0]


def test_the_family_weighs_more_than_another_of_the_same_size() -> None:
    voice = voice_of(make_local(model="qwen3-8b"), ("qwen2.5-7b-instruct", "mistral-7b-instruct-v0.3"))

    assert voice.speakers[0].weight > voice.speakers[1].weight
