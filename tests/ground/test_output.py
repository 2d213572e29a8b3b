"""One choice's tokens become events: nothing leaks, nothing is lost, logprobs stay with their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.output import ChoiceOutput, PlainText
from edgecloud.reasoning import ReasoningParser
from edgecloud.toolcalls import HERMES, ToolCallParser
from edgecloud.types import ChoiceDone, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta


def logprob(token, token_id=0):
    data = token if isinstance(token, bytes) else token.encode()
    return TokenLogprob(data.decode("utf-8", "replace"), -0.5, data, token_id)


def run(tokens, *, reason="stop", with_logprobs=False, index=0, **options):
    """Every delta of these tokens, the end included."""
    output = ChoiceOutput(index, **options)
    deltas = []
    for token in tokens:
        data = token if isinstance(token, bytes) else token.encode()
        deltas += output.push(data, logprob(data) if with_logprobs else None)
    return deltas + output.finish(reason)


def text_of(deltas):
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def reasoning_of(deltas):
    return "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))


def tokens_of(deltas):
    """For each text delta, its text and the tokens whose logprobs it carries."""
    return [(d.text, [p.token for p in d.logprobs]) for d in deltas if isinstance(d, TextDelta)]


class TestPlainText:
    def test_each_token_is_a_delta_of_its_choice_and_the_end_comes_once(self):
        output = ChoiceOutput(2)
        deltas = [*output.push(b"Hel"), *output.push(b"lo"), *output.finish("length"), *output.finish("stop")]
        assert deltas == [TextDelta("Hel", 2), TextDelta("lo", 2), ChoiceDone(2, "length")]

    def test_an_emoji_in_four_tokens_is_one_delta_of_four_tokens(self):
        deltas = run([bytes([byte]) for byte in "🐙".encode()], with_logprobs=True)
        assert [(d.text, d.num_tokens, len(d.logprobs)) for d in deltas[:-1]] == [("🐙", 4, 4)]

    @given(
        st.text("aé日👍🏽<t ", max_size=12),
        st.lists(st.integers(1, 3), min_size=60, max_size=60),
        st.sampled_from(["plain", "stops", "reasoning", "tools"]),
    )
    def test_the_logprobs_of_a_text_spell_it_however_tokens_cut_its_characters(self, text, sizes, way):
        # A reasoning model's answer begins behind its first blanks.
        text = text.strip()
        data, tokens = text.encode(), []
        for size in sizes:
            tokens.append(data[:size])
            data = data[size:]
        tokens = [token for token in tokens if token]
        options = {
            "plain": {},
            "stops": {"stops": ("日a", "t é", "👍a")},
            "reasoning": {"parser": ReasoningParser()},
            "tools": {"parser": ToolCallParser(HERMES)},
        }[way]
        deltas = run(tokens, with_logprobs=True, **options)
        if deltas[-1].stop is None:
            assert text_of(deltas) == text
            assert [p.bytes for d in deltas[:-1] for p in d.logprobs] == tokens
            assert sum(d.num_tokens for d in deltas[:-1]) == len(tokens)

    def test_a_lone_ff_is_a_replacement_character(self):
        assert run([b"a", b"\xff", b"b"])[1] == TextDelta("\ufffd")

    def test_half_a_character_at_the_end_is_shown_before_the_end(self):
        assert run([b"a", b"\xe2\x82"]) == [TextDelta("a"), TextDelta("\ufffd"), ChoiceDone(0, "stop")]

    def test_a_character_that_the_limit_cut_is_left_out(self):
        deltas = run([b"a", b"\xe2\x82"], reason="length", with_logprobs=True)
        assert text_of(deltas) == "a"
        assert tokens_of(deltas) == [("a", ["a"])]
        assert deltas[-1] == ChoiceDone(0, "length")

    def test_a_token_without_text_makes_no_delta_and_is_counted_with_the_next(self):
        assert run([b"", b"a"]) == [TextDelta("a", num_tokens=2), ChoiceDone(0, "stop")]

    def test_the_plain_parser_costs_nothing(self):
        assert run(["a"], parser=PlainText()) == run(["a"])

    @given(st.binary(max_size=40), st.integers(1, 5))
    def test_any_bytes_come_out_as_they_decode_and_no_delta_is_empty(self, data, size):
        deltas = run([data[at : at + size] for at in range(0, len(data), size)])
        assert text_of(deltas) == data.decode("utf-8", "replace")
        assert all(delta.text for delta in deltas[:-1])


class TestStops:
    def test_a_stop_over_three_tokens_ends_the_choice_and_leaks_nothing(self):
        output = ChoiceOutput(0, stops=("END!",))
        shown = [output.push(token) for token in (b"the E", b"N", b"D! more", b"even more")]
        assert shown == [[TextDelta("the ")], [], [], []]
        assert output.stopped == "END!"
        assert output.finish("length") == [ChoiceDone(0, "stop", "END!")]

    def test_a_held_tail_comes_out_at_the_end(self):
        assert run(["the E", "N"], stops=("END!",)) == [
            TextDelta("the "),
            TextDelta("EN", num_tokens=1),
            ChoiceDone(0, "stop"),
        ]

    def test_held_tokens_come_with_the_delta_that_holds_their_first_character(self):
        deltas = run(["a E", "N", "x", "b"], stops=("END",), with_logprobs=True)
        assert tokens_of(deltas) == [("a ", ["a E"]), ("ENx", ["N", "x"]), ("b", ["b"])]

    def test_a_token_wholly_cut_by_the_stop_has_no_logprob(self):
        deltas = run(["hi", " E", "N", "D"], stops=("END",), with_logprobs=True)
        assert tokens_of(deltas) == [("hi", ["hi"]), (" ", [" E"])]

    def test_a_stop_that_only_the_last_broken_character_completes_is_found(self):
        output = ChoiceOutput(0, stops=("\ufffd",))
        assert output.push(b"a\xe2") == [TextDelta("a")]
        assert output.finish("stop") == [ChoiceDone(0, "stop", "\ufffd")]

    @given(
        st.text(alphabet="abE", max_size=30),
        st.lists(st.text(alphabet="abE", min_size=1, max_size=4), max_size=3),
    )
    def test_token_by_token_is_the_same_as_all_at_once(self, text, stops):
        slow = run(list(text), stops=tuple(stops), with_logprobs=True)
        fast = run([text], stops=tuple(stops))
        assert (text_of(slow), slow[-1]) == (text_of(fast), fast[-1])
        assert "".join(p.token for d in slow[:-1] for p in d.logprobs) == text_of(slow)
        assert sum(d.num_tokens for d in slow[:-1]) == len(text_of(slow))


THOUGHT = "<think>\nLet me <b>see</b>.\n</think>\n\nThe answer <think> is 4."


class TestReasoning:
    @pytest.mark.parametrize("cut", range(1, len(THOUGHT)))
    def test_a_tag_split_at_any_offset_does_not_leak(self, cut):
        deltas = run([THOUGHT[:cut], THOUGHT[cut:]], parser=ReasoningParser())
        assert reasoning_of(deltas) == "Let me <b>see</b>."
        assert text_of(deltas) == "The answer <think> is 4."

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
    def test_a_thought_that_the_prompt_opened_ends_at_its_tag(self, size):
        text = "hm\n\n so\n</think>\n\nYes."
        deltas = run(
            [text[at : at + size] for at in range(0, len(text), size)], parser=ReasoningParser(opened=True)
        )
        assert (reasoning_of(deltas), text_of(deltas)) == ("hm\n\n so", "Yes.")

    def test_thoughts_stream_as_they_come(self):
        output = ChoiceOutput(1, parser=ReasoningParser(opened=True))
        assert output.push(b"First") == [ReasoningDelta("First", 1)]
        assert output.push(b" then") == [ReasoningDelta(" then", 1)]

    def test_an_answer_without_a_thought_is_all_answer(self):
        assert run(["<", "b>", " x"], parser=ReasoningParser()) == [
            TextDelta("<b>", num_tokens=2),
            TextDelta(" x"),
            ChoiceDone(0, "stop"),
        ]

    def test_a_thought_cut_by_the_limit_is_all_thought(self):
        deltas = run(["<think>", "so <", "/th"], parser=ReasoningParser(), reason="length")
        assert (reasoning_of(deltas), text_of(deltas)) == ("so </th", "")
        assert deltas[-1] == ChoiceDone(0, "length")

    def test_half_a_tag_and_nothing_more_is_text(self):
        assert text_of(run(["<thi"], parser=ReasoningParser())) == "<thi"

    def test_logprobs_of_thought_and_tags_do_not_come_with_the_answer(self):
        deltas = run(
            ["<think>", "hm", "</", "think>", "\n\n", "Yes", "."],
            parser=ReasoningParser(),
            with_logprobs=True,
        )
        assert tokens_of(deltas) == [("Yes", ["Yes"]), (".", ["."])]

    def test_a_token_that_ends_the_thought_and_begins_the_answer_goes_with_the_answer(self):
        deltas = run(["<think>hm</think>Yes"], parser=ReasoningParser(), with_logprobs=True)
        assert [type(delta) for delta in deltas] == [ReasoningDelta, TextDelta, ChoiceDone]

    def test_a_stop_string_works_inside_a_thought(self):
        deltas = run(["<think>a", "b STOP c"], stops=("STOP",), parser=ReasoningParser())
        assert (reasoning_of(deltas), deltas[-1]) == ("ab", ChoiceDone(0, "stop", "STOP"))


class TestToolCalls:
    def test_bookkeeping_does_not_grow_with_the_answer(self):
        output = ChoiceOutput(0, stops=("###",), parser=ReasoningParser(ToolCallParser(HERMES)))
        for _ in range(1000):
            output.push(b"word <")
        assert len(output._recent) + len(output._tokens) < 20

    def test_held_text_that_looks_like_shown_text_keeps_its_own_tokens(self):
        deltas = run(["<to", "<tool", " x"], parser=ToolCallParser(HERMES), with_logprobs=True)
        assert tokens_of(deltas) == [("<to", ["<to"]), ("<tool x", ["<tool", " x"])]

    def test_calls_end_the_choice_with_tool_calls(self):
        deltas = run(
            ['<tool_call>{"name": "f", "arguments": {}}</tool_call>'], parser=ToolCallParser(HERMES), index=3
        )
        assert deltas[-1] == ChoiceDone(3, "tool_calls")
        assert {delta.index for delta in deltas} == {3}

    def test_a_call_cut_by_the_limit_ends_with_length(self):
        deltas = run(
            ['<tool_call>{"name": "f", "arguments": {"a'], parser=ToolCallParser(HERMES), reason="length"
        )
        assert isinstance(deltas[0], ToolCallDelta)
        assert deltas[-1] == ChoiceDone(0, "length")

    def test_logprobs_of_the_text_around_a_call_stay_with_it(self):
        tokens = ["Well", "<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", "\n", "done"]
        deltas = run(tokens, parser=ToolCallParser(HERMES), with_logprobs=True)
        assert tokens_of(deltas) == [("Well", ["Well"]), ("done", ["done"])]
