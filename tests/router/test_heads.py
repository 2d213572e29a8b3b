"""Heads fitted to rows: what they know near the rows, and what they admit not to know far from them."""

from __future__ import annotations

import dataclasses
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.errors import ModelLoadError
from edgecloud.router.facts import Form, Structure
from edgecloud.router.learned import load_shipped
from edgecloud.router.learning.archive import from_arrays, to_arrays
from edgecloud.router.learning.bags import bags_of
from edgecloud.router.learning.features import COUNTS, SHARES, features
from edgecloud.router.learning.heads import fit_heads
from edgecloud.router.learning.measures import apgr, ece
from edgecloud.router.learning.nearest import Nearest, basis_of
from edgecloud.router.learning.rows import joined, unit
from edgecloud.router.wording import wording

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

    # Rows as close as these leave some doubt, which goes to length.
    assert ece(p_ok[:, 0], test.scores[:, 0]) < 0.12
    assert ece(p_ok[:, 1], test.scores[:, 1]) < 0.12
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

    assert found.p_ok[0] == pytest.approx(fitted().by_length(row[None])[0], abs=0.02)
    assert found.trust.max() < 0.01


def test_what_is_left_calls_long_questions_harder_for_every_model() -> None:
    short, long = (features(Structure(num_chars=chars)) for chars in (50, 2000))

    chances = fitted().by_length(np.stack([short, long]))

    assert (chances[0] > chances[1]).all()


def test_models_that_were_asked_other_questions_have_heads_of_their_own() -> None:
    rows = make_rows(1200)
    other = make_rows(1200, seed=2)
    both = joined([rows, dataclasses.replace(other, models=("third", "fourth"))])

    heads = fit_heads(both)

    assert heads.models == (SMALL, LARGE, "third", "fourth")
    assert np.isnan(both.scores).sum() == 4800
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


def test_the_neighbours_of_an_estimate_are_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, searches, search = load_shipped().heads, [], Nearest._nearest

    def counted(self: Nearest, *arguments: Any) -> Any:
        searches.append(1)
        return search(self, *arguments)

    monkeypatch.setattr(Nearest, "_nearest", counted)
    vector = unit(np.linspace(-1, 1, 384, dtype=np.float32))
    heads.predict(vector[None], ROW[None])
    near = heads.nearest(vector, ROW, 3)

    assert len(searches) == len(heads.parts)
    keys, _ = heads.placed(heads.rows.vectors, heads.rows.features)
    key, _ = heads.placed(vector[None], ROW[None])
    assert {row for row, _ in near} == set(np.argsort(-(keys @ key[0]))[:3].tolist())


def test_few_rows_are_trusted_less_than_many() -> None:
    few = fit_heads(make_rows(100)).predict(HARD[None], ROW[None])
    many = fitted().predict(HARD[None], ROW[None])

    assert (few.trust < many.trust).all()
    assert (few.trust < 0.3).all()


def test_a_question_of_another_form_than_all_rows_is_not_trusted() -> None:
    shape = Structure(num_chars=200, num_words=33, maths=40, code=40, form=Form(quotes=9, commas=60))

    trust = fitted().predict(EASY[None], features(shape)[None]).trust

    assert (trust < 0.01).all()


def test_words_tell_what_neither_vector_nor_structure_does() -> None:
    rows = make_rows(1500)
    luck = np.random.default_rng(3).random(1500) < 0.5
    blind = dataclasses.replace(
        rows,
        vectors=unit(rows.vectors * 0 + EASY),
        scores=np.stack([luck, np.ones(1500)], 1).astype(float),
        bags=bags_of([wording("plain easy words" if each else "rare hard terms") for each in luck]),
    )

    heads = fit_heads(blind)
    asked = np.stack([EASY] * 2), np.stack([ROW] * 2)
    told = heads.predict(*asked, bags_of([wording("easy words"), wording("hard terms")])).p_ok[:, 0]
    silent = heads.predict(*asked).p_ok[:, 0]

    assert told[0] > told[1] + 0.3
    assert silent[0] == pytest.approx(silent[1])


def test_one_question_finds_the_same_rows_as_many_do() -> None:
    keys = unit(np.random.default_rng(0).normal(size=(3000, 80)).astype(np.float32) * np.linspace(2, 0, 80))
    nearest = Nearest(keys.astype(np.float32), basis_of(keys))

    _, many = nearest.search(keys[:50], 5)
    one = [nearest.search(keys[[row]], 5)[1][0] for row in range(50)]

    same = [len(set(a.tolist()) & set(b.tolist())) for a, b in zip(one, many, strict=True)]
    assert all(row in found for row, found in enumerate(one))
    assert np.mean(same) > 4.8


def test_features_that_were_not_measured_are_as_usual_as_can_be() -> None:
    unknown = ROW.copy()
    unknown[len(COUNTS) + len(SHARES) :] = np.nan

    found = fitted().predict(EASY[None], unknown[None])

    assert np.isfinite(found.p_ok).all()
    assert (found.trust > 0.5).all()


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("a pickle was run",))


def damaged(how: str) -> dict[str, np.ndarray]:
    arrays = {**to_arrays(fitted()), "fingerprint": np.array(FINGERPRINT)}
    if how == "shape":
        arrays["kernel0"] = arrays["kernel0"][:, 1:]
    elif how == "curves of other models":
        arrays["curves"] = arrays["curves"][1:]
    elif how == "not a number":
        arrays["kernel0"] = arrays["kernel0"] * np.nan
    elif how == "fewer rows":
        arrays["scores"] = arrays["scores"][1:]
    elif how == "missing":
        del arrays["heads"]
    elif how == "pickle":
        arrays["ids"] = np.array([Bomb()], dtype=object)
    return arrays


@pytest.mark.parametrize(
    "how", ["shape", "curves of other models", "not a number", "fewer rows", "missing", "pickle"]
)
def test_a_damaged_file_is_one_sentence_and_never_run(tmp_path: Path, how: str) -> None:
    np.savez(tmp_path / "outcomes.npz", **damaged(how), allow_pickle=True)

    with pytest.raises(ModelLoadError, match="reinstall edgecloud; until then the sizes of models decide"):
        load_shipped(tmp_path / "outcomes.npz")


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps(Bomb())])
def test_a_file_that_is_no_archive_is_the_same_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "outcomes.npz").write_bytes(content)

    with pytest.raises(ModelLoadError, match="reinstall edgecloud"):
        load_shipped(tmp_path / "outcomes.npz")
