"""`edgecloud route train` and `eval`, over verdicts in the user's own database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgecloud.app.cli.main import edgecloud
from edgecloud.app.forgetting import forget_chats
from edgecloud.errors import BadRequest, EdgeCloudError
from edgecloud.router.facts import Structure
from edgecloud.router.learning.features import features
from edgecloud.router.learning.rows import unit
from edgecloud.router.outcomes import Answered, Outcomes
from tests.router.learning_rows import DIMENSIONS, FINGERPRINT, HARD, SMALL, make_quality


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    monkeypatch.setattr("edgecloud.app.teaching.load_shipped", make_quality)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(edgecloud, ["route", *arguments])
    if isinstance(result.exception, EdgeCloudError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def give_verdicts(home: Path, number: int, *, pattern: bool) -> Outcomes:
    """Verdicts on the local model, right by the third component where there is a `pattern`."""
    source, outcomes = np.random.default_rng(0), Outcomes(home / "data" / "edgecloud.db")
    for index in range(number):
        vector = unit((HARD + source.normal(0, 0.4, DIMENSIONS)).astype(np.float32))
        right = source.random() < ((0.95 if vector[2] > 0 else 0.1) if pattern else 0.5)
        answered = Answered(
            f"req-{index}",
            "laptop",
            SMALL,
            "local",
            None,
            vector,
            FINGERPRINT,
            features(Structure(num_chars=200, num_words=33)),
            chat_id=f"chat-{index}",
        )
        outcomes.record(answered, "up" if right else "down")
    return outcomes


# cases: R44
def test_what_is_proven_better_is_installed_and_undone(home: Path) -> None:
    outcomes = give_verdicts(home, 300, pattern=True)

    trained: dict[str, Any] = json.loads(run("train", "--json").stdout)

    assert trained["loss"] < min(trained["loss_installed"], trained["loss_length"])
    assert outcomes.corrections(FINGERPRINT).version == trained["version"]
    assert "trained-1" in json.loads(run("eval", "--json").stdout)["quality"]
    assert "What came with the product is used again." in run("train", "--undo").stdout
    assert outcomes.corrections(FINGERPRINT).version == 0


def test_what_is_not_proven_is_refused_with_the_reason(home: Path) -> None:
    outcomes = give_verdicts(home, 200, pattern=False)

    with pytest.raises(EdgeCloudError, match="not surely better than prompt length") as refused:
        run("train")

    assert (refused.value.code, refused.value.exit_code) == ("not_better", 1)
    assert outcomes.versions() == []


def test_with_few_verdicts_both_say_what_is_missing(home: Path) -> None:
    give_verdicts(home, 3, pattern=True)

    with pytest.raises(EdgeCloudError, match="3 verdicts in 3 chats, and training needs 40 in 20"):
        run("train")
    told = run("eval").stdout
    assert "too few verdicts" in told
    assert "none yet" not in told


def test_evaluation_prints_the_comparison(home: Path) -> None:
    give_verdicts(home, 100, pattern=True)

    told = run("eval").stdout

    assert "100 verdicts of 100 chats" in told
    assert [name in told for name in ("trained now", "installed", "length")] == [True] * 3


@pytest.mark.parametrize(
    "line", ["no json", '{"prompt": 3, "scores": {}}', '{"prompt": "a", "scores": {"m": 7}}']
)
def test_a_line_that_is_no_outcome_is_named(home: Path, line: str) -> None:
    good = json.dumps({"prompt": "a\u2028b", "scores": {"m": 1}}, ensure_ascii=False)
    (home / "outcomes.jsonl").write_text(f"{good}\n{line}\n")

    with pytest.raises(BadRequest, match=r"Line 2 of outcomes\.jsonl is not"):
        run("train", "--from", str(home / "outcomes.jsonl"))


def test_a_forgotten_chat_takes_its_verdicts_along(home: Path) -> None:
    outcomes = give_verdicts(home, 3, pattern=True)

    forget_chats(["chat-1"])

    assert outcomes.evidence(FINGERPRINT).ids.tolist() == ["req-0", "req-2"]
