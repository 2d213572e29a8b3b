"""What a request has seen, as its receipt tells it."""

from __future__ import annotations

import pytest

from edgecloud.app import run as module
from edgecloud.app.run import Run, Tried
from edgecloud.types import ChatRequest, Done, EngineEvent, Notice, Start, TextDelta, Timings, Usage

START = Start("local", "smollm2", 3)


def run_of(monkeypatch: pytest.MonkeyPatch, *events: tuple[float, EngineEvent]) -> Run:
    """A request whose events came at these seconds after its beginning."""
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    run = Run(ChatRequest(prompt="hi"))
    for seconds, event in events:
        now = 100.0 + seconds
        run.see(event)
    now = 160.0
    return run


def test_the_speed_of_a_whole_answer_is_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Done(Usage(3, 30), Timings(decode_s=2.0))
    run = run_of(monkeypatch, (0, START), (1, TextDelta("a")), (9, done))
    assert run.receipt().tokens_per_s == 15.0


def test_the_speed_of_an_answer_that_was_cut_off_is_that_of_its_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first came with what was computed before it, and what came after the last is no answering."""
    pieces = [(1.0 + number, TextDelta("a", num_tokens=4)) for number in range(4)]
    run = run_of(monkeypatch, (0, START), *pieces)
    assert run.receipt().tokens_per_s == 4.0
    assert run.receipt().total_s == 60.0


def test_one_piece_has_no_speed_and_another_engine_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(monkeypatch, (0, START), (1, TextDelta("a")))
    assert run.receipt().tokens_per_s == 0.0

    before = [(float(number), TextDelta("a")) for number in range(1, 9)]
    after = [(20.0, START), (21.0, TextDelta("b")), (23.0, TextDelta("b"))]
    assert run_of(monkeypatch, (0, START), *before, *after).receipt().tokens_per_s == 0.5


def test_an_answer_that_another_went_on_with_has_the_speed_of_who_began_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its engine's own timings are of the last part, its tokens of all."""
    began = [(float(number), TextDelta("a", num_tokens=4)) for number in range(1, 4)]
    seam, done = Notice("continued", "It broke off."), Done(Usage(3, 20), Timings(decode_s=0.1))
    after = [(9.0, seam), (10.0, TextDelta("b", num_tokens=8)), (10.5, seam), (11.0, done)]
    assert run_of(monkeypatch, (0, START), *began, *after).receipt().tokens_per_s == 4.0


def test_where_no_engine_began_the_model_is_the_one_asked_for() -> None:
    run = Run(ChatRequest(prompt="hi", model="auto"))
    run.tried.append(Tried("local", "", 0.0, 1.0, "interrupted", Usage()))
    receipt = run.receipt()
    assert (receipt.engine, receipt.model) == ("local", "auto")
