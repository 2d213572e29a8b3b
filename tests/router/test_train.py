"""Training: what is proven better is installed, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from edgecloud.router.learned import Corrections
from edgecloud.router.learning.evidence import Evidence
from edgecloud.router.learning.rows import unit
from edgecloud.router.train import FEWEST, evaluate, train

from .learning_rows import DIMENSIONS, HARD, SMALL, facts_at, make_evidence, make_quality
from .worlds import make_local


def verdicts(number: int, chance_of: object, *, seed: int = 0) -> Evidence:
    """Questions spread widely around the hard cluster, right with a chance by their third component."""
    source = np.random.default_rng(seed)
    vectors = unit((HARD + source.normal(0, 0.4, (number, DIMENSIONS))).astype(np.float32))
    right = source.random(number) < np.array([chance_of(vector) for vector in vectors])  # type: ignore[operator]
    return make_evidence(vectors, right.astype(float), chars=source.integers(60, 600, number))


def otherwise(vector: np.ndarray) -> float:
    """Nothing like the public outcomes, and not by length."""
    return 0.95 if vector[2] > 0 else 0.15


def as_known(vector: np.ndarray) -> float:
    """Just what the public outcomes say."""
    return float(make_quality().predict(facts_at(vector), [make_local(model=SMALL)])["laptop"].mean)


def test_what_the_user_finds_and_nobody_knew_is_learnt_and_proven() -> None:
    own = verdicts(400, otherwise)

    trained = train(own, make_quality())

    assert trained.refusal is None
    assert trained.report is not None
    assert trained.report.loss < trained.report.loss_installed
    assert trained.report.loss < trained.report.loss_length
    after = make_quality(corrections=Corrections(1, trained.weights))
    left, right = unit(HARD + 0.5 * np.eye(DIMENSIONS)[2]), unit(HARD - 0.5 * np.eye(DIMENSIONS)[2])
    means = [
        after.predict(facts_at(vector.astype(np.float32)), [make_local(model=SMALL)])["laptop"].mean
        for vector in (left, right)
    ]
    assert means[0] > means[1] + 0.3


def test_a_version_that_is_no_better_than_the_installed_one_is_refused() -> None:
    own = verdicts(400, otherwise)
    installed = make_quality(corrections=Corrections(1, train(own, make_quality()).weights))

    trained = train(verdicts(400, otherwise, seed=1), installed)

    assert trained.refusal is not None
    assert "not surely better than the installed version" in trained.refusal


def test_verdicts_without_a_pattern_install_nothing() -> None:
    trained = train(verdicts(300, lambda vector: 0.5), make_quality())

    assert trained.refusal is not None
    assert "not surely better than prompt length alone" in trained.refusal


def test_verdicts_that_say_what_is_known_install_nothing() -> None:
    assert train(verdicts(300, as_known), make_quality()).refusal is not None


def test_few_verdicts_train_nothing() -> None:
    own = verdicts(FEWEST - 1, otherwise)

    assert train(own, make_quality()).refusal == (
        "There are 39 verdicts in 39 chats, and training needs 40 in 20: "
        "rate more answers, or give a file of outcomes, where each prompt is a chat."
    )
    assert evaluate(own, make_quality()) is None


def test_few_verdicts_on_each_engine_train_nothing() -> None:
    own = verdicts(FEWEST, otherwise)
    scattered = make_evidence(
        own.vectors, own.scores, engines=np.array([f"engine-{n}" for n in range(FEWEST)])
    )

    assert "No engine has 8 verdicts" in str(train(scattered, make_quality()).refusal)


def test_one_chat_cannot_prove_anything_however_long_it_is() -> None:
    own = verdicts(400, otherwise)
    one_chat = make_evidence(own.vectors, own.scores, groups=np.full(400, "chat"))

    assert train(own, make_quality()).refusal is None
    assert "in 1 chats" in str(train(one_chat, make_quality()).refusal)


def test_the_report_is_plain_json() -> None:
    report = evaluate(verdicts(60, otherwise), make_quality())

    assert report is not None
    assert report.as_json()["num_verdicts"] == 60
    assert report.as_json()["num_chats"] == 60
    assert report.as_json()["auc"] == pytest.approx(report.auc)
