"""Conversations brought into the shape that templates take: joined and moved, never dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from edgecloud.turns import (
    calls_as_text,
    front_system,
    hoist_system,
    merge_runs,
    one_call_each,
    system_into_user,
)
from edgecloud.types import Message, ToolCall

HI, HELLO = Message("user", "hi"), Message("assistant", "hello")
BRIEF = Message("system", "Be brief.")


def calling(*ids: str) -> Message:
    return Message("assistant", tool_calls=tuple(ToolCall(id, "look", "{}") for id in ids))


def result(id: str, content: str) -> Message:
    return Message("tool", content, tool_call_id=id)


def test_system_messages_at_the_front_become_one_and_later_ones_stay() -> None:
    kind = Message("developer", "Be kind.")
    assert front_system((BRIEF, kind, HI, kind)) == (
        Message("system", "Be brief.\n\nBe kind."),
        HI,
        Message("system", "Be kind."),
    )


def test_every_system_message_can_be_brought_to_the_front() -> None:
    assert hoist_system((HI, BRIEF, HELLO, BRIEF)) == (
        Message("system", "Be brief.\n\nBe brief."),
        HI,
        HELLO,
    )


def test_a_system_message_becomes_the_beginning_of_the_first_question() -> None:
    assert system_into_user((BRIEF, HI, HELLO)) == (Message("user", "Be brief.\n\nhi"), HELLO)
    assert system_into_user((BRIEF, HELLO)) == (Message("user", "Be brief."), HELLO)
    assert system_into_user((HI, HELLO)) == (HI, HELLO)
    assert system_into_user(()) == ()


def test_neighbours_of_one_role_are_one_turn_but_calls_and_results_stay_apart() -> None:
    assert merge_runs((HI, HI, HELLO)) == (Message("user", "hi\n\nhi"), HELLO)
    apart = (HELLO, calling("a"), result("a", "1"), result("a", "2"), calling("b"), HELLO)
    assert merge_runs(apart) == apart


def test_pictures_and_thoughts_of_joined_turns_are_kept() -> None:
    first = Message("user", "one", images=("data:a",), reasoning="hm")
    second = Message("user", "", images=("data:b",))
    assert merge_runs((first, second)) == (
        Message("user", "one", images=("data:a", "data:b"), reasoning="hm"),
    )


def test_calls_and_results_can_be_told_as_text() -> None:
    spoken = calls_as_text(
        (HI, Message("assistant", "Wait.", tool_calls=calling("a").tool_calls), result("a", "7"))
    )
    assert spoken == (
        HI,
        Message("assistant", 'Wait.\n{"name": "look", "arguments": {}}'),
        Message("user", "Result: 7"),
    )
    assert calls_as_text((HI, HELLO)) == (HI, HELLO)


def test_every_call_can_have_a_turn_of_its_own_with_its_result_behind_it() -> None:
    turns = (HI, calling("a", "b"), result("b", "2"), result("a", "1"), HELLO)
    assert one_call_each(turns) == (HI, calling("a"), result("a", "1"), calling("b"), result("b", "2"), HELLO)

    first, second = one_call_each((replace(calling("a", "b"), content="Wait."),))
    assert (first.content, second.content) == ("Wait.", "")


def test_ids_that_begin_anew_in_each_turn_keep_their_own_results() -> None:
    turns = (calling("0"), result("0", "first"), HI, calling("0"), result("0", "second"))
    assert one_call_each(turns) == turns


def test_a_result_that_nobody_asked_for_stays_where_it_is() -> None:
    turns = (result("x", "early"), calling("x"), HI, result("y", "strange"))
    assert one_call_each(turns) == turns


@given(
    st.lists(
        st.sampled_from([HI, HELLO, calling("a"), calling("a", "b"), result("a", "1"), result("b", "2")])
    )
)
def test_no_call_and_no_result_is_lost_or_told_twice(turns: list[Message]) -> None:
    def parts(messages: tuple[Message, ...] | list[Message]) -> tuple[Counter[ToolCall], Counter[str]]:
        return (
            Counter(call for message in messages for call in message.tool_calls),
            Counter(message.content for message in messages if message.role == "tool"),
        )

    shaped = one_call_each(turns)
    assert parts(shaped) == parts(turns)
    assert all(len(message.tool_calls) <= 1 for message in shaped)
