"""The pool without a compiler answers all the same, and threads change no bit."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path

import pytest

from edgecloud.pool import loading
from edgecloud.pool.models.torch_decoder import TorchDecoder
from edgecloud.pool.runner import Drawing

from .running import Pool, make_config, make_runner
from .test_families import PROMPT, build


def test_threads_change_no_bit(tmp_path: Path) -> None:
    build("llama", tmp_path)
    answers = []
    for threads in (1, 2, 3):
        config = make_config(max_chunk=19)
        pool = Pool(make_runner(tmp_path, config, threads=threads, weights="int8"), config)
        answers.append(pool.answer(PROMPT, 12, Drawing(logprobs=3)))
    assert answers[0] == answers[1] == answers[2]


def test_without_a_compiler_torch_computes_and_the_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build("llama", tmp_path)
    config = make_config()
    expected = Pool(make_runner(tmp_path, config), config).answer(PROMPT, 8)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(loading, "library_folder", lambda: tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, "edgecloud.pool"):
        runner = make_runner(tmp_path, config)
    assert isinstance(runner.decoder, TorchDecoder)
    assert "no C compiler" in caplog.text
    assert Pool(runner, config).answer(PROMPT, 8) == expected


def test_more_choices_than_tokens_in_a_step_are_drawn_all(tmp_path: Path) -> None:
    build("llama", tmp_path)
    config = make_config(token_budget=16, max_running=16)
    pool = Pool(make_runner(tmp_path, config), config)
    few = pool.submit(PROMPT[:3], 4, Drawing(temperature=1.0, seed=1))
    pool.step()
    pool.scheduler.propose({pool.scheduler.planner.running[0].id: (1, 2, 3)})
    many = pool.submit(PROMPT[:9], 4, Drawing(temperature=1.0, seed=2), n=15)
    pool.step()
    pool.run()
    # Three rows of the first and its drafts, and one for each of fifteen choices: more than 16.
    assert len(pool.plans[1].tokens) == 12
    alone = Pool(pool.runner, config)
    again = alone.submit(PROMPT[:9], 4, Drawing(temperature=1.0, seed=2), n=15)
    alone.run()
    for choice in range(15):
        assert pool.answers[many, choice] == alone.answers[again, choice]
    assert pool.answers[few, 0] == alone.answer(PROMPT[:3], 4, Drawing(temperature=1.0, seed=1))


def test_a_step_too_large_for_its_memory_is_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    runner = make_runner(tmp_path, make_config(context=32, token_budget=16))
    roomy = Pool(runner, make_config(context=64, token_budget=64))
    roomy.submit(PROMPT[:17], 1)
    with pytest.raises(ValueError, match="17 tokens"):
        roomy.step()
    far = Pool(runner, make_config(context=64, token_budget=16))
    far.submit(PROMPT[:40], 1)
    with pytest.raises(ValueError, match="up to 31"):
        far.run()


def test_closing_gives_the_memory_back(tmp_path: Path) -> None:
    build("llama", tmp_path)
    runner = make_runner(tmp_path, make_config())
    storage = weakref.ref(runner.decoder.kv.storage)
    runner.close()
    runner.close()
    assert storage() is None


def test_a_window_forgets_what_lies_before_it(tmp_path: Path) -> None:
    build("mistral", tmp_path)
    config = make_config(caching=False)
    pool = Pool(make_runner(tmp_path, config), config)
    # Three layers of a window of 21 reach 60 tokens back, and 70 more are too far.
    changed = [(token + 1) % 199 for token in PROMPT]
    first = pool.answer([*PROMPT, *PROMPT], 1, Drawing(logprobs=4))
    second = pool.answer([*changed, *PROMPT], 1, Drawing(logprobs=4))
    assert first == second
    third = pool.answer([*PROMPT, *PROMPT[:-10], 5, *PROMPT[-9:]], 1, Drawing(logprobs=4))
    assert third != first
