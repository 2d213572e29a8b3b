"""One answer while it comes: what is said of it, and how fast it is."""

from __future__ import annotations

from edgecloud.app.chats import Seam
from edgecloud.app.tui.state.turn import Turn
from edgecloud.types import ChoiceDone, Notice, ReasoningDelta, Start, TextDelta, ToolCallDelta


def test_waiting_is_never_a_bare_spinner() -> None:
    turn = Turn(began=0.0)

    assert turn.state(3.0) == "waiting for the model · 3 s"
    turn.see(Notice("loading", "loading big, 2.1 of 5.0 GB"), 4.0)
    assert turn.state(4.0) == "loading big, 2.1 of 5.0 GB · 4 s"
    turn.see(Start("local", "big", 1200), 5.0)
    assert turn.state(6.0) == "big reads 1,200 tokens · 6 s"


def test_speed_is_taken_when_tokens_arrive_and_not_when_they_are_drawn() -> None:
    turn = Turn(began=0.0)
    turn.see(Start("local", "m", 5), 0.1)
    for number in range(11):
        turn.see(TextDelta("x"), 1.0 + number / 10)

    assert turn.tokens_per_s == 10
    assert turn.state(100.0) == "m answers · 11 tokens · 10 tokens/s"


def test_thinking_is_told_from_answering() -> None:
    turn = Turn(began=0.0)
    turn.see(ReasoningDelta("hm"), 1.0)
    assert "thinks" in turn.state(1.0)
    turn.see(TextDelta("so"), 2.0)
    assert "answers" in turn.state(2.0)
    assert (turn.reasoning, turn.text) == ("hm", "so")


def test_a_change_of_who_answers_is_a_seam_and_a_lost_history_a_warning() -> None:
    # cases: TE5
    turn = Turn(began=0.0)
    turn.see(Notice("rerouted", "gpu-box is away, local answers."), 1.0)
    turn.see(Notice("history", "This answer is not kept: the disk is full."), 1.0)

    turn.see(TextDelta("Seven m"), 1.0)
    turn.see(Notice("continued", "local goes on."), 1.0)

    assert turn.seams == [Seam(0, "gpu-box is away, local answers."), Seam(7, "local goes on.")]
    assert turn.warning == "This answer is not kept: the disk is full."


def test_tool_calls_are_put_together_and_other_choices_left_out() -> None:
    turn = Turn(began=0.0)
    turn.see(ToolCallDelta(0, "c1", "find", '{"a"'), 1.0)
    turn.see(ToolCallDelta(0, arguments=": 1}"), 1.0)
    turn.see(TextDelta("not ours", index=1), 1.0)
    turn.see(ChoiceDone(0, "tool_calls"), 1.0)

    assert [(call.name, call.arguments) for call in turn.tool_calls] == [("find", '{"a": 1}')]
    assert (turn.text, turn.finish_reason) == ("", "tool_calls")


def test_a_pool_that_answers_is_named_and_why_while_it_does() -> None:
    turn = Turn(0.0)
    assert turn.known() == ["Nobody has begun to answer yet: it waits its turn."]

    turn.see(Start("paid", "m", 12, reason="asked for by name"), 1.0)
    turn.see(TextDelta("x"), 2.0)

    assert turn.state(2.0) == "m on paid answers · 1 tokens"
    assert turn.known() == [
        "m on paid is answering now.",
        "because: asked for by name",
        "12 tokens were read, 1 came so far.",
    ]


def test_this_machine_needs_no_name() -> None:
    turn = Turn(0.0)
    turn.see(Start("local", "m", 12), 1.0)
    assert turn.state(6.0) == "m reads 12 tokens · 6 s"
