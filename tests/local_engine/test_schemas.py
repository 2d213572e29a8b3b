# ruff: noqa: E501
"""Schemas: what an answer under one can be is what the standard's own validator passes, or the request is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edgecloud.errors import BadRequest
from edgecloud.local_engine.batcher import Batcher
from edgecloud.local_engine.constraint import check_constraint
from edgecloud.local_engine.llama import Candidates, Model
from edgecloud.local_engine.sampler import SamplingPlan
from edgecloud.local_engine.schemas import SchemaCompiler, SchemaGrammar
from edgecloud.types import Constraint

from .conftest import chat, collect, job

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def vocabulary(model_path: Path) -> Iterator[Model]:
    model = Model(model_path, vocab_only=True)
    yield model
    model.close()


@pytest.fixture(scope="module")
def compiler(vocabulary: Model) -> SchemaCompiler:
    return SchemaCompiler(vocabulary)


def schema_grammar(compiler: SchemaCompiler, schema: str) -> SchemaGrammar:
    return compiler.compile(Constraint("schema", schema))


def accepts(model: Model, grammar: SchemaGrammar, text: str) -> bool:
    """Whether `text` can be written to its end, and be the end."""
    grammar, scratch = grammar.clone(), Candidates(model.n_vocab)
    for token in model.tokenize(text):
        if not grammar.allows(token, scratch):
            return False
        grammar.accept(token)
    return grammar.allows(model.eos, scratch)


# ------------------------------------------------------------------------------------------------ one by one

GOOD_SCHEMAS: list[tuple[object, list[object], list[object]]] = [
    ({}, [{"a": 1}, [1, "x"], "text", 3.5, True, None], []),
    ({"type": "object"}, [{}, {"a": [1]}], [[], "x"]),
    ({"type": "string", "enum": ["red", "grün"]}, ["red", "grün"], ["blue"]),
    ({"properties": {"a": True}, "required": ["a"]}, [{"a": 1}, {"a": {"b": None}}], [{}]),
    ({"type": "object", "properties": {"a": {"description": "any"}}, "required": ["a", "b"]}, [{"a": 1, "b": []}], [{"a": 1}]),
    ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, [5, None], ["x"]),
    ({"type": ["string", "null"]}, ["x", None], [3]),
    ({"type": "string", "pattern": "^[a-c]{2,3}$"}, ["ab", "abc"], ["a", "abcd"]),
    ({"$defs": {"p": {"type": "integer"}}, "type": "object", "properties": {"x": {"$ref": "#/$defs/p"}}, "required": ["x"]}, [{"x": 3}], [{"x": "3"}]),
    ({"const": {"k": 1}}, [{"k": 1}], [{"k": 2}]),
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["today", "2024-02-30", "2024-13-01"]),
    ({"type": "integer", "minimum": -3, "maximum": 150}, [-3, 0, 99, 150], [-4, 151, 1000, 2.5]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2.5}, [0.1, 2, 2.49], [0, 2.5, 3]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, 700], [1, 8]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "日本語"], ["a", "abcd"]),
    ({"type": "string", "pattern": "b"}, ["b", "abc"], ["", "ac"]),
    ({"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": False}, [{"n1": 3}], [{"n1": "3"}, {"a": 3}]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2}, [{"a": 1}, {"a": 1, "b": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, [[], [1]], [[1, 2], ["x"]]),
    ({"properties": {"a": False}, "type": "object", "additionalProperties": True}, [{}, {"b": 1}], [{"a": 1}]),
    ({"properties": {"a": {"type": "integer"}}, "type": "object"}, [{}, {"a": 1}], [{"a": 1, "chatter": 2}]),
    ({"type": "array", "items": {"properties": {"a": True}, "type": "object"}}, [[{"a": 1}]], [[{"b": 1}]]),
    ({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}], "type": "object"}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, [3], [2, "x"]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [3, "x"], [None]),
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, [[1, 1]], ["x"]),
    ({"type": "string", "format": "phone", "title": "t", "description": "d", "default": 5, "examples": [1], "$schema": "x", "$comment": "c", "deprecated": True}, ["x"], [5]),
    ({"type": "array", "items": {}, "maxItems": 1_000_000_000}, [[1, "x"]], [{}]),
    ({"$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "additionalProperties": False}}, "$ref": "#/$defs/n"}, [{"c": {"c": {}}}], [{"c": 1}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), GOOD_SCHEMAS, ids=range(len(GOOD_SCHEMAS)))
def test_a_schema_takes_what_fits_it_and_nothing_else(
    compiler: SchemaCompiler, vocabulary: Model, schema: object, good: list[object], bad: list[object]
) -> None:
    grammar = schema_grammar(compiler, json.dumps(schema))
    for value in good:
        assert accepts(vocabulary, grammar, json.dumps(value, ensure_ascii=False)), value
        assert accepts(vocabulary, grammar, json.dumps(value, ensure_ascii=False, indent=2)), value
    for value in bad:
        assert not accepts(vocabulary, grammar, json.dumps(value)), value


def test_any_object_is_no_other_value_and_no_broken_one(compiler: SchemaCompiler, vocabulary: Model) -> None:
    grammar = schema_grammar(compiler, '{"type": "object"}')
    assert accepts(vocabulary, grammar, json.dumps({"a": [1, -2.5e3, 'x"\\\n', None, True, {"b": {}}]}))
    for text in ("[]", '"x"', "{", "{'a': 1}", '{"a": 01}', '{"a": 1,}', '{"a": 1}' + 3 * "\n"):
        assert not accepts(vocabulary, grammar, text), text


def test_layout_has_a_bound_or_a_small_model_would_write_nothing_else(
    compiler: SchemaCompiler, vocabulary: Model
) -> None:
    grammar = schema_grammar(compiler, '{"type": "object"}')
    assert accepts(vocabulary, grammar, '{\n  "a": 1\n}')
    assert not accepts(vocabulary, grammar, "{\n\n}")
    assert not accepts(vocabulary, grammar, "{" + 30 * " " + "}")


def test_a_grammar_that_lost_its_way_lets_the_answer_neither_go_on_nor_end(
    compiler: SchemaCompiler, vocabulary: Model
) -> None:
    grammar, candidates = schema_grammar(compiler, '{"type": "object"}'), Candidates(vocabulary.n_vocab)
    (wrong,) = vocabulary.tokenize("x")
    with pytest.raises(BadRequest):
        grammar.accept(wrong)
    assert not grammar.allows(vocabulary.eos, candidates)
    with pytest.raises(BadRequest):
        grammar.mask(candidates)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"[0-9]{3}-[0-9]{4}", ["555-1234"], ["555", "555-12345", "x555-1234"]),
        (r"(yes|né)!?", ["yes", "né!"], ["no", "yes!!", ""]),
    ],
)
def test_a_pattern_is_matched_as_a_whole(
    compiler: SchemaCompiler, vocabulary: Model, pattern: str, good: list[str], bad: list[str]
) -> None:
    grammar = compiler.compile(Constraint("regex", pattern))

    assert all(accepts(vocabulary, grammar, text) for text in good)
    assert not any(accepts(vocabulary, grammar, text) for text in bad)


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", "[z-a]"])
def test_a_pattern_that_cannot_be_followed_is_refused(compiler: SchemaCompiler, pattern: str) -> None:
    with pytest.raises(BadRequest, match="The regular expression can't be enforced") as raised:
        compiler.compile(Constraint("regex", pattern, param="guided_regex"))
    assert raised.value.param == "guided_regex"
    assert "a pattern can't be read (" in raised.value.message


def test_a_clone_goes_its_own_way(compiler: SchemaCompiler, vocabulary: Model) -> None:
    first, scratch = schema_grammar(compiler, '{"enum": ["ab", "cd"]}'), Candidates(vocabulary.n_vocab)
    (quote,) = vocabulary.tokenize('"')
    first.accept(quote)
    second = first.clone()
    (a,), (c,) = vocabulary.tokenize("a"), vocabulary.tokenize("c")
    first.accept(a)
    assert second.allows(c, scratch)
    assert not first.allows(c, scratch)


def test_a_control_token_is_no_text_unless_it_is_markup(model: Model) -> None:
    (end,) = model.tokenize("<|im_start|>", parse_special=True)
    (quote,) = model.tokenize('"')
    for markup, allowed in ((frozenset[int](), False), (frozenset({end}), True)):
        grammar = schema_grammar(SchemaCompiler(model, markup), '{"type": "string"}')
        grammar.accept(quote)
        assert grammar.allows(end, Candidates(model.n_vocab)) is allowed


# --------------------------------------------------------------------------------------------------- refused

BROKEN_SCHEMAS = [
    "", "{", "nul", "[]", "42", '"object"', "null", '{"type": "sound"}', '{"type": 5}', '{"type": ["object", "sound"]}', '{"type": {}}',
    '{"properties": []}', '{"properties": {"a": 1}}', '{"properties": {"a": null}}', '{"type": "object", "properties": {"a": {"type": "x"}}}',
    '{"$ref": "#/nowhere"}', '{"$ref": "http://example.com/schema"}', '{"$ref": "file:///etc/passwd"}', '{"$ref": 5}', '{"$ref": "nowhere"}',
    '{"anyOf": []}', '{"anyOf": {}}', '{"oneOf": 1}', '{"allOf": [1]}', '{"allOf": []}', '{"enum": []}', '{"enum": 3}', '{"required": "a"}',
    '{"type": "object", "required": [1]}', '{"type": "array", "items": 3}', '{"type": "array", "items": {"type": "string"}, "minItems": -1}',
    '{"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 2}',
    '{"type": "string", "minLength": 1.5}', '{"type": "string", "minLength": "3"}',
    '{"type": "string", "minLength": true}', '{"type": "string", "pattern": "("}', '{"type": "string", "pattern": "^(a$"}',
    '{"type": "string", "pattern": "^[a$"}', '{"type": "string", "pattern": 5}',
    '{"type": "string", "pattern": "^(?=a)b$"}', '{"type": "string", "format": 5, "pattern": "^*$"}',
    '{"additionalProperties": 5, "type": "object"}',
    "[" * 10_000, '{"items":' * 5_000 + "{}" + "}" * 5_000, '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', '{"prefixItems": []}',
]  # fmt: skip


@pytest.mark.parametrize("schema", BROKEN_SCHEMAS, ids=range(len(BROKEN_SCHEMAS)))
def test_a_broken_schema_is_refused(compiler: SchemaCompiler, schema: str) -> None:
    with pytest.raises(BadRequest) as error:
        schema_grammar(compiler, schema)
    assert error.value.param == "response_format"
    assert len(error.value.message) < 400
    assert "\n" not in error.value.message


UNENFORCEABLE: list[tuple[dict[str, Any], str]] = [
    ({"not": {"type": "string"}}, "not"),
    ({"uniqueItems": True}, "uniqueItems"),
    ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if"),
    ({"contains": {"type": "integer"}}, "contains"),
    ({"propertyNames": {"pattern": "^a"}}, "propertyNames"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"dependentSchemas": {"a": {}}}, "dependentSchemas"),
    ({"dependencies": {"a": ["b"]}}, "dependencies"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"$dynamicRef": "#x"}, "$dynamicRef"),
    ({"minProperties": 3}, "minProperties"),
    ({"multipleOf": -1}, "multipleOf"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "not"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"type": "string", "pattern": "^(?=a)b$"}, "look-around"),
]


@pytest.mark.parametrize(("schema", "word"), UNENFORCEABLE, ids=[word for _, word in UNENFORCEABLE])
def test_what_cannot_be_enforced_is_refused_by_name(
    compiler: SchemaCompiler, schema: dict[str, Any], word: str
) -> None:
    with pytest.raises(BadRequest, match=word.replace("$", r"\$")):
        schema_grammar(compiler, json.dumps(schema))


def test_the_sentence_says_where(compiler: SchemaCompiler) -> None:
    schema = {"properties": {"tags": {"anyOf": [{"type": "null"}, {"items": {"not": {}}}]}}}
    with pytest.raises(BadRequest, match=r"'not'.*#/properties/tags/anyOf/1/items/not\)"):
        schema_grammar(compiler, json.dumps(schema))


FAULTS = [
    ({"$ref": "#"}, "#/$ref", "no end"),
    ({"type": "nosuch"}, "#/type", "nosuch"),
    ({"properties": {"a/b": {"items": {"type": "nosuch"}}}}, "#/properties/a~1b/items/type", "nosuch"),
    ({"$defs": {"a": {"minLength": -1}}, "$ref": "#/$defs/a"}, "#/$defs/a/minLength", "minLength"),
    ({"$defs": {"b": {"$ref": "#/$defs/b"}}, "anyOf": [{"$ref": "#/$defs/b"}]}, "#/$defs/b/$ref", "no end"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/none"}]}, "#/anyOf/1/$ref", "does not exist"),
    ({"properties": {"a": {"pattern": "("}}, "required": ["a"]}, "#/properties/a/pattern", "unclosed group"),
    ({"title": "x", "anyOf": [{"enum": []}]}, "#/anyOf/0/enum", "Unsatisfiable"),
    ({"items": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "#/items/oneOf", "oneOf"),
    ({"properties": {"a": {"multipleOf": 0}}}, "#/properties/a/multipleOf", "above 0"),
    ({"items": {"minProperties": 3}}, "#/items/minProperties", "required"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "place", "word"), FAULTS, ids=[place for _, place, _ in FAULTS])
def test_a_fault_is_told_with_keyword_and_place_with_and_without_a_model(
    compiler: SchemaCompiler, schema: dict[str, Any], place: str, word: str
) -> None:
    constraint = Constraint("schema", json.dumps(schema), param="schema")
    for check in (compiler.compile, check_constraint):
        with pytest.raises(BadRequest) as raised:
            check(constraint)
        told = raised.value.message
        assert re.search(rf"(?<![^ (]){re.escape(place)}(?![^ :)])", told), told
        assert word in told
        assert raised.value.param == "schema"


def test_of_many_functions_the_wrong_one_is_told(compiler: SchemaCompiler) -> None:
    schemas = [{"type": "object"}, {"type": "object", "properties": {"city": {"type": "town"}}}]
    constraint = Constraint("calls", "start: arguments0 | arguments1", json.dumps(schemas), param="tools")
    with pytest.raises(BadRequest, match=r"#/properties/city/type \(the parameters of function 2\)"):
        compiler.compile(constraint)


def test_a_property_may_be_called_as_a_keyword_is(compiler: SchemaCompiler, vocabulary: Model) -> None:
    schema = {"type": "object", "properties": {"not": {"const": {"if": 1}}}, "required": ["not"]}
    assert accepts(vocabulary, schema_grammar(compiler, json.dumps(schema)), '{"not": {"if": 1}}')


# ------------------------------------------------------------------------------------------- random schemas


def optional(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


def of_type(name: str, **keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return optional(**keywords).map(lambda schema: {"type": name, **schema})


SMALL = st.integers(-120, 120)
COUNT = st.integers(0, 3)
NAMES = st.sampled_from(["a", "b", "name", "größe"])
# A vocabulary may lack the bytes of rare characters: this one does.
TEXTS = st.text('ab1é日👍"\\/\n\t ', max_size=5)
VALUES = st.none() | st.booleans() | SMALL | TEXTS | st.lists(SMALL, max_size=2)
LEAVES = st.one_of(
    of_type("integer", minimum=SMALL, maximum=SMALL, multipleOf=st.integers(1, 9)),
    of_type("integer", exclusiveMinimum=SMALL, exclusiveMaximum=SMALL),
    of_type("number", minimum=SMALL, exclusiveMaximum=SMALL, multipleOf=st.sampled_from([0.5, 2])),
    of_type("string", minLength=COUNT, maxLength=st.integers(2, 6)),
    of_type(
        "string", pattern=st.sampled_from(["^[a-c]+$", "x", "^(ab|cd){1,2}$", r"^\d{2}-\w*$", "[^0-9]$"])
    ),
    of_type("string", format=st.sampled_from(["ipv4", "uuid", "email", "no-such-format"])),
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {}, {"type": ["integer", "string"], "minimum": 5}]
    ),
    VALUES.map(lambda value: {"const": value}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
)


def composed(parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(
        of_type("array", items=parts | st.just(False), prefixItems=several, minItems=COUNT, maxItems=COUNT),
        of_type(
            "object",
            properties=st.dictionaries(NAMES, parts, max_size=3),
            required=st.lists(NAMES, unique=True, max_size=2),
            additionalProperties=parts | st.booleans(),
            patternProperties=st.dictionaries(st.sampled_from(["^n", "z$"]), parts, max_size=1),
            minProperties=COUNT,
            maxProperties=COUNT,
        ),
        optional(anyOf=several, properties=st.dictionaries(NAMES, parts, max_size=2)),
        st.lists(parts, min_size=2, max_size=2).map(lambda both: {"allOf": both}),
        st.lists(parts, min_size=2, max_size=2).map(lambda both: {"oneOf": both}),
    )


SCHEMAS = st.recursive(LEAVES, composed, max_leaves=5)


def compiled(compiler: SchemaCompiler, schema: dict[str, Any]) -> SchemaGrammar | None:
    try:
        return schema_grammar(compiler, json.dumps(schema))
    except BadRequest:
        return None


def validate(schema: dict[str, Any], text: bytes) -> None:
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    validator.validate(json.loads(text))


def wander(model: Model, grammar: SchemaGrammar, rng: Random, limit: int = 150) -> bytes | None:
    """A random answer under the grammar, or None if it has no end yet after `limit` tokens."""
    candidates, text = Candidates(model.n_vocab), b""
    for step in range(limit):
        candidates.load(np.zeros(model.n_vocab, np.float32))
        grammar.mask(candidates)
        assert candidates.any_possible(), text
        possible = np.flatnonzero(np.isfinite(candidates._rows["logit"]))
        if possible[0] in model.eog_ids and rng.random() < 0.5:
            return text
        # Most tokens only make strings longer.
        closing = [token for token in possible[:400] if model.token_bytes(int(token))[:1] in b'"}]']
        token = int(rng.choice(closing if closing and rng.random() < step / 20 else possible))
        if token in model.eog_ids:
            return text
        grammar.accept(token)
        text += model.token_bytes(token)
    return None


@settings(max_examples=250, deadline=None)
@given(schema=SCHEMAS, rng=st.randoms(use_true_random=False))
def test_every_way_through_a_schema_ends_in_what_validates(
    compiler: SchemaCompiler, vocabulary: Model, schema: dict[str, Any], rng: Random
) -> None:
    grammar = compiled(compiler, schema)
    for _ in range(3 if grammar is not None else 0):
        text = wander(vocabulary, grammar.clone(), rng)
        if text is not None:
            validate(schema, text)


# Shrinking would decode for minutes.
@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(schemas=st.lists(SCHEMAS, min_size=6, max_size=6), seed=st.integers(0, 1 << 30))
@pytest.mark.slow
async def test_what_a_model_writes_under_a_schema_validates(
    model: Model, make_batcher: Callable[..., Batcher], schemas: list[dict[str, Any]], seed: int
) -> None:
    compiler, batcher = SchemaCompiler(model), make_batcher()
    plan = SamplingPlan(temperature=1.0, seed=seed)
    asked = []
    for schema in schemas:
        if (grammar := compiled(compiler, schema)) is not None:
            prompt = chat(model, f"Answer in JSON as this schema says: {json.dumps(schema)[:200]}")[:100]
            again = grammar.clone()
            ticket = batcher.submit(job(prompt, 30, grammar=grammar, plan=plan, stop_ids=model.eog_ids))
            asked.append((schema, again, ticket))
    for schema, grammar, ticket in asked:
        answers = await collect(ticket)
        for token in answers.tokens[0]:
            assert grammar.allows(token, Candidates(model.n_vocab))
            grammar.accept(token)
        if answers.reasons == {0: "stop"}:
            validate(schema, model.detokenize(answers.tokens[0]))
