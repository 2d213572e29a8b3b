"""The pool without a compiler answers all the same, and threads change no bit."""

from __future__ import annotations

import logging
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
