"""Verdicts in the database: kept, replaced, withdrawn, deleted with their chat; versions and the way back."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgecloud.errors import BadRequest, NotFound
from edgecloud.router.facts import Structure
from edgecloud.router.learning.features import features
from edgecloud.router.ledger import Ledger
from edgecloud.router.outcomes import MOST, VERDICTS, Answered, Outcomes

from .learning_rows import DIMENSIONS, EASY, FINGERPRINT


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outcomes(tmp_path: Path, clock: Clock) -> Outcomes:
    return Outcomes(tmp_path / "edgecloud.db", clock=clock)


def answer(
    request_id: str = "req-1", *, engine: str = "laptop", chat_id: str | None = "chat-1", **changes: object
) -> Answered:
    return Answered(
        **{  # type: ignore[arg-type]
            "request_id": request_id,
            "engine": engine,
            "model": "small-8b",
            "kind": "local",
            "parameters": None,
            "vector": EASY,
            "fingerprint": FINGERPRINT,
            "features": features(Structure(num_chars=200)),
            "chat_id": chat_id,
            **changes,
        }
    )


def scores(outcomes: Outcomes) -> dict[str, float]:
    own = outcomes.evidence(FINGERPRINT)
    return dict(zip(own.ids.tolist(), own.scores.tolist(), strict=True))


def test_a_verdict_comes_back_with_its_question_as_numbers(outcomes: Outcomes) -> None:
    outcomes.record(answer(parameters=8.0), "down")

    own = outcomes.evidence(FINGERPRINT)

    assert (own.ids[0], own.engines[0], own.models[0], own.kinds[0]) == (
        "req-1",
        "laptop",
        "small-8b",
        "local",
    )
    assert (own.scores[0], own.weights[0], own.parameters[0]) == (0.0, 1.0, 8.0)
    assert own.vectors[0] == pytest.approx(EASY)
    assert own.features[0] == pytest.approx(features(Structure(num_chars=200)))
    assert len(outcomes.evidence("another embedder")) == 0


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_its_score_and_weight(outcomes: Outcomes, verdict: str) -> None:
    outcomes.record(answer(), verdict)

    own = outcomes.evidence(FINGERPRINT)

    assert (own.scores[0], own.weights[0]) == VERDICTS[verdict]
    assert outcomes.counts() == {verdict: 1}


def test_a_thumb_outweighs_what_was_only_guessed_and_the_last_thumb_counts(outcomes: Outcomes) -> None:
    outcomes.record(answer(), "asked_again")
    outcomes.record(answer(), "up")
    outcomes.record(answer(), "regenerated")
    assert scores(outcomes) == {"req-1": 1.0}

    outcomes.record(answer(), "down")
    assert scores(outcomes) == {"req-1": 0.0}


def test_a_verdict_can_be_taken_back(outcomes: Outcomes) -> None:
    outcomes.record(answer(), "down")

    assert outcomes.withdraw("req-1")
    assert not outcomes.withdraw("req-1")
    assert scores(outcomes) == {}


def test_a_verdict_that_there_is_not_is_refused_with_those_there_are(outcomes: Outcomes) -> None:
    with pytest.raises(BadRequest, match="no verdict 'meh': say one of up, down"):
        outcomes.record(answer(), "meh")


def test_deleting_a_chat_deletes_its_verdicts_from_the_file(outcomes: Outcomes, tmp_path: Path) -> None:
    outcomes.record(answer("req-1", chat_id="chat-1"), "down")
    outcomes.record(answer("req-2", chat_id="chat-2"), "down")
    outcomes.record(answer("req-3", chat_id=None), "down")

    assert outcomes.delete_chats(["chat-1"]) == 1

    assert set(scores(outcomes)) == {"req-2", "req-3"}
    other = sqlite3.connect(tmp_path / "edgecloud.db")
    assert other.execute("SELECT count(*) FROM outcomes WHERE chat_id = 'chat-1'").fetchone() == (0,)


def test_no_text_has_a_place_in_the_tables(outcomes: Outcomes, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "edgecloud.db")
    columns = {row[1] for row in connection.execute("PRAGMA table_info(outcomes)")}

    assert columns.isdisjoint({"text", "prompt", "question", "answer", "content"})


def test_a_verdict_on_an_answer_whose_chat_was_deleted_is_not_kept(
    outcomes: Outcomes, tmp_path: Path
) -> None:
    with closing(Ledger(tmp_path / "edgecloud.db", clock=lambda: 1_000_000.0)) as ledger:
        ledger.forget_chats(["chat-1"])
    outcomes.delete_chats(["chat-2"])

    for number, chat_id in enumerate(["chat-1", "chat-2", "chat-3", None]):
        outcomes.record(answer(f"req-{number}", chat_id=chat_id), "up")

    assert scores(outcomes) == {"req-2": 1.0, "req-3": 1.0}


def test_old_verdicts_go_when_the_user_keeps_nothing_longer(outcomes: Outcomes, clock: Clock) -> None:
    outcomes.record(answer("old"), "up")
    clock.now += 40 * 86_400
    outcomes.record(answer("new"), "up")

    assert outcomes.prune(30) == 1
    assert set(scores(outcomes)) == {"new"}


def test_the_number_of_verdicts_is_bounded(
    outcomes: Outcomes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecloud.router.outcomes.MOST", 3)
    for number in range(5):
        clock.now += 1
        outcomes.record(answer(f"req-{number}"), "up")

    assert set(scores(outcomes)) == {"req-2", "req-3", "req-4"}
    assert MOST > 1000


def test_what_was_not_measured_of_an_old_verdict_is_no_number(outcomes: Outcomes) -> None:
    old = answer("req-1")
    outcomes.record(dataclasses.replace(old, features=old.features[:14]), "up")

    row = outcomes.evidence(FINGERPRINT).features[0]

    assert row[:14] == pytest.approx(old.features[:14])
    assert np.isnan(row[14:]).all()


# ------------------------------------------------------------------------------------------------- versions

WEIGHTS = {("laptop", "small-8b"): np.arange(DIMENSIONS, dtype=float)}


def test_versions_are_kept_used_and_undone(outcomes: Outcomes) -> None:
    first = outcomes.install(WEIGHTS, FINGERPRINT, {"loss": 0.5})
    second = outcomes.install({("cloud", "large"): np.ones(DIMENSIONS)}, FINGERPRINT, {"loss": 0.4})

    assert outcomes.corrections(FINGERPRINT).version == second
    assert outcomes.undo() == first
    found = outcomes.corrections(FINGERPRINT)
    assert found.version == first
    assert found.weights["laptop", "small-8b"] == pytest.approx(np.arange(DIMENSIONS))
    assert outcomes.undo() == 0
    assert outcomes.corrections(FINGERPRINT).version == 0
    with pytest.raises(NotFound, match="nothing to undo"):
        outcomes.undo()


def test_the_last_versions_are_kept_with_their_reports(outcomes: Outcomes) -> None:
    for number in range(7):
        outcomes.install(WEIGHTS, FINGERPRINT, {"loss": number})

    kept = outcomes.versions()

    assert [each["report"]["loss"] for each in kept] == [6, 5, 4, 3, 2]
    assert [each["installed"] for each in kept] == [True, False, False, False, False]


def test_a_version_for_another_embedder_is_not_used(outcomes: Outcomes) -> None:
    outcomes.install(WEIGHTS, FINGERPRINT, {})

    assert outcomes.corrections("another embedder").version == 0
