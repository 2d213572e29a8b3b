"""Heads fitted to rows: what they know near the rows, and what they admit not to know far from them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.errors import ModelLoadError
from edgecloud.router.facts import Structure
from edgecloud.router.learned import load_shipped
from edgecloud.router.learning.features import features
from edgecloud.router.learning.heads import fit_heads, from_arrays, to_arrays
from edgecloud.router.learning.measures import apgr, ece
from edgecloud.router.learning.rows import joined, unit

from .learning_rows import EASY, ELSEWHERE, FINGERPRINT, HARD, LARGE, SMALL, fitted, make_rows

ROW = features(Structure(num_chars=200, num_words=33))


def gain(vector: np.ndarray, chars: int = 200) -> float:
    row = features(Structure(num_chars=chars, num_words=chars // 6))
    p_ok = fitted().predict(vector[None], row[None]).p_ok[0]
    return float(p_ok[1] - p_ok[0])


def test_the_gain_is_large_where_only_the_large_model_is_right() -> None:
    assert gain(HARD) > 0.5
    assert abs(gain(EASY)) < 0.15


def test_chances_of_rows_never_seen_are_calibrated_and_rank_the_gain() -> None:
    test = make_rows(2000, seed=1)

    p_ok = fitted().predict(test.vectors, test.features).p_ok

    assert ece(p_ok[:, 0], test.scores[:, 0]) < 0.06
    assert ece(p_ok[:, 1], test.scores[:, 1]) < 0.06
    assert apgr(p_ok[:, 1] - p_ok[:, 0], *test.scores.T) > 0.7


def test_rows_are_trusted_among_themselves_and_not_far_away() -> None:
    trust = fitted().predict(np.stack([EASY, HARD, ELSEWHERE]), np.stack([ROW] * 3)).trust

    assert (trust[:2] > 0.5).all()
    assert (trust[2] < 0.01).all()


@given(
    direction=st.lists(st.floats(-1, 1), min_size=6, max_size=6).filter(
        lambda each: max(map(abs, each)) > 0.1
    ),
    chars=st.integers(20, 5000),
)
def test_far_from_all_rows_only_length_is_left(direction: list[float], chars: int) -> None:
    vector = unit(np.array([0, 0, *direction], np.float32))
    row = features(Structure(num_chars=chars, num_words=chars // 6))

    found = fitted().predict(vector[None], row[None])

    left = fitted().by_length(row[None])[0]
    calibrated = [head.calibration(left[[column]])[0] for column, head in enumerate(fitted().heads)]
    assert found.p_ok[0] == pytest.approx(calibrated, abs=0.02)
    assert found.trust.max() < 0.01


def test_what_is_left_calls_long_questions_harder_for_every_model() -> None:
    short, long = (features(Structure(num_chars=chars)) for chars in (50, 2000))

    chances = fitted().by_length(np.stack([short, long]))

    assert (chances[0] > chances[1]).all()


def test_models_that_were_asked_other_questions_have_heads_of_their_own() -> None:
    rows = make_rows(120)
    other = make_rows(120, seed=2)
    both = joined(
        [rows, type(other)(*(getattr(other, name) for name in other.__slots__[:-1]), ("third", "fourth"))]
    )

    heads = fit_heads(both)

    assert heads.models == (SMALL, LARGE, "third", "fourth")
    assert np.isnan(both.scores).sum() == 480
    p_ok = heads.predict(HARD[None], ROW[None]).p_ok[0]
    assert p_ok[3] - p_ok[2] > 0.4


def test_saved_heads_say_the_same_and_need_no_pickle() -> None:
    file = io.BytesIO()
    np.savez_compressed(file, **to_arrays(fitted()))
    file.seek(0)

    with np.load(file, allow_pickle=False) as archive:
        again = from_arrays(dict(archive))

    asked = np.stack([EASY, HARD, ELSEWHERE]), np.stack([ROW] * 3)
    assert again.predict(*asked).p_ok == pytest.approx(fitted().predict(*asked).p_ok, abs=0.01)


def test_what_is_shipped_has_models_of_many_sizes_and_no_text() -> None:
    quality = load_shipped()

    assert len(quality.heads.rows) > 15_000
    assert {"mixtral-8x7b-instruct", "gpt-4-1106-preview", "qwen2.5-7b-instruct"} <= set(quality.heads.models)
    assert max(len(str(id).split()) for id in quality.heads.rows.ids) == 1
    assert quality.version.startswith("outcomes-")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was run",))


def damaged(how: str) -> dict[str, np.ndarray]:
    arrays = {**to_arrays(fitted()), "fingerprint": np.array(FINGERPRINT)}
    if how == "shape":
        arrays["linear"] = arrays["linear"][:, 1:]
    elif how == "not a number":
        arrays["linear"] = arrays["linear"] * np.nan
    elif how == "fewer rows":
        arrays["scores"] = arrays["scores"][1:]
    elif how == "missing":
        del arrays["skill"]
    elif how == "pickle":
        arrays["ids"] = np.array([Bomb()], dtype=object)
    return arrays


@pytest.mark.parametrize("how", ["shape", "not a number", "fewer rows", "missing", "pickle"])
def test_a_damaged_file_is_one_sentence_and_never_run(tmp_path: Path, how: str) -> None:
    np.savez(tmp_path / "outcomes.npz", **damaged(how), allow_pickle=True)

    with pytest.raises(ModelLoadError, match="reinstall edgecloud; until then the sizes of models decide"):
        load_shipped(tmp_path / "outcomes.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps(Bomb())])
def test_a_file_that_is_no_archive_is_the_same_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "outcomes.npz").write_bytes(content)

    with pytest.raises(ModelLoadError, match="reinstall edgecloud"):
        load_shipped(tmp_path / "outcomes.npz")
