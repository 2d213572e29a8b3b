"""Chat bodies: what is accepted, and what is refused with the name of the field."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecloud.errors import BadRequest
from edgecloud.types import ChatRequest, Constraint, Message, NamedTool, Sampling, ToolCall
from edgecloud.wire import openai_chat
from edgecloud.wire.common import StreamOptions
from edgecloud.wire.errors import openai_error

from .answers import PATIENT, WEATHER, check_made_or_refused, json_values, make_body, mutate

PIXEL = "data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}

# Every field we know, with a value that is right.
FULL_BODY = {
    "model": "smollm2",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "name": "Ann",
            "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": PIXEL}}],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 1,
    "frequency_penalty": -1,
    "repeat_penalty": 1.1,
    "repetition_penalty": 1.2,
    "logit_bias": {"5": -100, "7": 1.5},
    "seed": 7,
    "max_tokens": 20,
    "max_completion_tokens": 10,
    "n_predict": 30,
    "stop": ["END"],
    "stop_token_ids": [2],
    "min_tokens": 4,
    "ignore_eos": True,
    "priority": -1,
    "n": 2,
    "logprobs": True,
    "top_logprobs": 3,
    "tools": [WEATHER],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "user": "ann",
    "metadata": {"k": "v"},
    "modalities": ["text"],
    "add_generation_prompt": True,
    "continue_final_message": False,
}


def parse(**fields: Any) -> ChatRequest:
    return openai_chat.parse(make_body(**fields))[0]


def refusal(body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        openai_chat.parse(body)
    return caught.value


def test_usage_with_each_chunk_is_sent_only_where_usage_is_asked_for() -> None:
    _, options = openai_chat.parse(make_body(stream=True, stream_options={"continuous_usage_stats": True}))
    assert options == StreamOptions(True, False, False)


def test_every_field_we_know_is_read() -> None:
    request, options = openai_chat.parse(FULL_BODY)
    assert request.messages == (
        Message("system", "Be brief."),
        Message("user", "Look", images=(PIXEL,), name="Ann"),
        Message("assistant", tool_calls=(ToolCall("c1", "weather", "{}"),), reasoning="hm"),
        Message("tool", "sunny", tool_call_id="c1"),
    )
    assert request.sampling == Sampling(0.5, 5, 0.9, 0.1, 1.0, -1.0, 1.1, {5: -100.0, 7: 1.5}, 7)
    assert (request.model, request.n, request.max_tokens, request.logprobs) == ("smollm2", 2, 10, 3)
    assert (request.stop, request.stop_token_ids, request.ignore_eos) == (("END",), (2,), True)
    assert (request.min_tokens, request.priority) == (4, -1)
    assert request.tool_choice == NamedTool("weather")
    assert [tool.name for tool in request.tools] == ["weather"]
    assert not request.parallel_tool_calls
    assert request.constraint == Constraint("schema", json.dumps(SCHEMA, separators=(",", ":")))
    assert request.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    assert request.door == "http"
    assert options == StreamOptions(True, True, True)


def test_what_is_not_asked_for_is_left_to_the_engine() -> None:
    request, options = openai_chat.parse(make_body())
    assert request == ChatRequest(messages=(Message("user", "hello"),), door="http", id=request.id)
    assert options == StreamOptions()


def test_null_is_the_same_as_absent_for_every_optional_field() -> None:
    nulls = {name: None for name in FULL_BODY if name != "messages"}
    nulls |= {"grammar": None, "json_schema": None, "functions": None, "function_call": None}
    message = {
        "role": "user",
        "content": "hello",
        "name": None,
        "tool_calls": None,
        "reasoning_content": None,
    }
    request, options = openai_chat.parse({**nulls, "messages": [message]})
    plain, _ = openai_chat.parse(make_body())
    assert request == replace(plain, id=request.id)
    assert options == StreamOptions()


def test_unknown_fields_are_ignored_everywhere() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {}}], "mood": 3}
    request, _ = openai_chat.parse({"messages": [message], "service_tier": "flex", "zzz": [1]})
    assert request.messages == (Message("user", "hi"),)


@pytest.mark.parametrize("body", [[], "hello", 42, None, True, 1.5, [[]]])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    assert refusal(body).message == "The body must be a JSON object."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": 123, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "r" * 65, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0]"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": float("inf")}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n_predict": 0}, "n_predict"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [5]}, "stop"),
        ({"stop": {}}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"priority": 101}, "priority"),
        ({"logprobs": "yes"}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 5}, "top_logprobs"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 11: 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": [[5, 1]]}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {}}, "tool_choice.type"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "tides"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice.function.name"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"response_format": {"type": "sound"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "{}"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "json_object"}, "grammar": "root ::= x"}, "grammar"),
        ({"grammar": " "}, "grammar"),
        ({"json_schema": {"a": float("nan")}}, "json_schema"),
        ({"json_schema": {"\udfff": 1}}, "json_schema"),
        ({"json_schema": '{"title": "\\ud800"}'}, "json_schema"),
        ({"json_schema": '{"maximum": NaN}'}, "json_schema"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0]"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"user": 5}, "user"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(make_body(**fields))
    assert error.param == param
    assert param in error.message


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
        "https://example.com/a.png",
        "data:text/html;base64,aGk=",
        "data:image/png,raw",
        "data:image/png;base64,",
        "data:image/png;base64,@@@",
        "data:image/png;base64,aGk",
        "iVBORw0KGgo=",
        "",
        5,
        None,
    ],
)
def test_an_image_that_is_no_valid_data_uri_is_refused(url: Any) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    error = refusal({"messages": [{"role": "user", "content": [part]}]})
    assert error.param == "messages[0].content[0].image_url.url"
    assert "passwd" not in error.message


def test_a_megabyte_of_nonsense_gives_a_small_error() -> None:
    huge = "x" * 1_000_000
    bodies = [
        make_body(temperature=huge),
        make_body(logit_bias={huge: 1}),
        make_body(tool_choice=huge),
        make_body(response_format={"type": huge}),
        make_body(json_schema={huge: "\ud800"}),
        {"messages": [{"role": huge, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": huge}]}]},
        make_body(model=huge),
    ]
    for body in bodies:
        assert len(json.dumps(openai_error(refusal(body)))) < 500


def test_json_nested_too_deep_is_refused_and_does_not_overflow_the_stack() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert refusal(make_body(json_schema=deep)).param == "json_schema"


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "the best book?"}]
    for role in ("user", "system", "narrator"):
        request, _ = openai_chat.parse({"messages": [{"role": role, "content": parts}]})
        assert request.messages == (Message(role, "What is the best book?"),)


@pytest.mark.parametrize("calls", [[], None])
def test_an_assistant_without_calls_may_say_so(calls: Any) -> None:
    turn = {"role": "assistant", "content": "hi", "tool_calls": calls}
    request, _ = openai_chat.parse({"messages": [turn]})
    assert request.messages == (Message("assistant", "hi"),)


def test_reasoning_is_read_under_either_name() -> None:
    turns = [{"role": "assistant", "content": "x", key: "hm"} for key in ("reasoning", "reasoning_content")]
    request, _ = openai_chat.parse({"messages": turns})
    assert [message.reasoning for message in request.messages] == ["hm", "hm"]


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 8}, 8),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 8, "max_completion_tokens": 5}, 5),
        ({"n_predict": 9}, 9),
        ({"n_predict": -1}, None),
        ({"max_tokens": 8.0}, 8),
    ],
)
def test_the_limit_of_tokens_goes_by_several_names(fields: dict[str, Any], limit: int | None) -> None:
    assert parse(**fields).max_tokens == limit


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
    ],
)
def test_a_schema_is_read_wherever_clients_put_it(form: dict[str, Any]) -> None:
    assert parse(**form).constraint == Constraint("schema", json.dumps(SCHEMA, separators=(",", ":")))


def test_other_constraints() -> None:
    assert parse(response_format={"type": "text"}).constraint is None
    assert parse(response_format={"type": "json_object"}).constraint == Constraint("json")
    assert parse(grammar='root ::= "x"').constraint == Constraint("grammar", 'root ::= "x"')


def test_what_sglang_calls_its_constraints_is_understood() -> None:
    assert parse(regex="a+").constraint == Constraint("regex", "a+")
    assert parse(ebnf='root ::= "x"').constraint == Constraint("grammar", 'root ::= "x"')
    assert parse(json_schema=json.dumps(SCHEMA)).constraint == Constraint(
        "schema", json.dumps(SCHEMA, separators=(",", ":"))
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar": 'root ::= "x"'}, "grammar"),
        ({"ebnf": 'root ::= "x"'}, "ebnf"),
        ({"regex": "a"}, "regex"),
        ({"json_schema": {}}, "json_schema"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs.json"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_a_constraint_knows_which_field_asked_for_it(fields: dict[str, Any], param: str) -> None:
    constraint = parse(**fields).constraint
    assert constraint is not None
    assert constraint.param == param


@pytest.mark.parametrize("prefix", ["guided_", "structured_outputs"])
def test_what_vllm_calls_structured_outputs_is_understood(prefix: str) -> None:
    def asked(**fields: Any) -> Constraint | None:
        if prefix == "structured_outputs":
            return parse(structured_outputs=fields).constraint
        return parse(**{f"guided_{name}": value for name, value in fields.items()}).constraint

    schema = Constraint("schema", json.dumps(SCHEMA, separators=(",", ":")))
    assert asked(json=SCHEMA) == schema
    assert asked(json=json.dumps(SCHEMA)) == schema
    assert asked(json_object=True) == Constraint("json")
    assert asked(grammar='root ::= "x"') == Constraint("grammar", 'root ::= "x"')
    assert asked(regex="a+") == Constraint("regex", "a+")
    assert asked(choice=["yes", "né", 'a"\n']) == Constraint(
        "grammar", 'root ::= "yes" | "né" | "a\\U00000022\\U0000000A"'
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": ""}, "guided_regex"),
        ({"regex": 5}, "regex"),
        ({"ebnf": " "}, "ebnf"),
        ({"regex": "a+", "ebnf": 'root ::= "x"'}, "regex"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
        ({"guided_grammar": " "}, "guided_grammar"),
        ({"guided_json": {}, "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
    ],
)
def test_a_constraint_that_is_not_understood_is_never_dropped(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse(**fields)
    assert error.value.param == param


def test_tool_choice_without_tools_may_only_be_none_or_auto() -> None:
    assert parse(tool_choice="none", tools=[]).tool_choice == "none"
    assert parse(tool_choice="auto").tool_choice == "auto"
    assert parse(tools=[WEATHER], tool_choice="required").tool_choice == "required"


@pytest.mark.parametrize(
    "ends",
    [
        {
            "temperature": 0,
            "top_p": 1,
            "min_p": 0,
            "top_k": 0,
            "presence_penalty": -2,
            "frequency_penalty": 2,
        },
        {"temperature": 2, "min_p": 1, "presence_penalty": 2, "frequency_penalty": -2, "n": 128},
        {"seed": 2**63 - 1, "n": 1, "max_tokens": 1, "max_completion_tokens": 1, "n_predict": 1},
        {"seed": -(2**63), "logprobs": True, "top_logprobs": 20, "stop": ["x"] * 16, "stop_token_ids": [0]},
        {"logit_bias": {"0": -100, "2147483647": 100}},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(ends: dict[str, Any]) -> None:
    assert parse(**ends).messages


def test_no_alternatives_are_no_reason_to_refuse() -> None:
    assert parse(top_logprobs=0).logprobs is None
    assert parse(top_logprobs=0, logprobs=True).logprobs == 0


def test_minus_one_turns_top_k_off_and_makes_the_seed_random() -> None:
    sampling = parse(top_k=-1, seed=-1).sampling
    assert (sampling.top_k, sampling.seed) == (0, None)


def test_the_final_message_can_be_continued() -> None:
    body = {"messages": [{"role": "assistant", "content": "Once"}], "continue_final_message": True}
    assert openai_chat.parse(body)[0].continue_final
    assert openai_chat.parse({**body, "add_generation_prompt": False})[0].continue_final


@settings(PATIENT, max_examples=200)
@given(st.integers(0, 2**32), json_values())
def test_any_json_anywhere_in_a_body_is_a_request_or_a_bad_request(seed: int, value: Any) -> None:
    for body in (mutate(FULL_BODY, seed, value), value):
        check_made_or_refused(lambda body: openai_chat.parse(body)[:1], body)


@pytest.mark.parametrize("value", [0, 1e30, 2**63])
def test_a_number_out_of_its_range_is_told_the_whole_range(value: float) -> None:
    with pytest.raises(BadRequest, match=r"max_tokens must be between 1 and 9223372036854775807"):
        openai_chat.parse(make_body(max_tokens=value))
