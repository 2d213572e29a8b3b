# ruff: noqa: E501
"""The wrapper: files that are no models, text and tokens, states, grammars that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgecloud.errors import BadRequest, EdgeCloudError, ModelLoadError
from edgecloud.local_engine.llama import (
    JSON_OBJECT_GBNF,
    Candidates,
    Context,
    EmbeddingContext,
    Grammar,
    Model,
    quantize,
    schema_grammar,
)

from .conftest import words

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"GGUF",
        lambda data: b"PK\x03\x04" + data[4:5000],
        lambda data: data[:1_000_000],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:],
        lambda data: data[:16] + b"\xff" * 8 + data[24:],
        lambda data: data.replace(b"llama.block_count", b"llama.block_cxunt"),
        lambda data: data.replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama", b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0xxxxx"),
        lambda data: data[:200] + b"\xff" * 3000 + data[3200:],
    ],
    ids=["empty", "magic", "zip", "header", "half", "last-byte", "version", "counts", "key", "architecture", "noise"],
)  # fmt: skip
def test_a_file_that_is_no_model_is_one_sentence(
    tmp_path: Path, model_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(damage(model_path.read_bytes()))
    with pytest.raises(ModelLoadError) as error:
        Model(broken)
    assert "\n" not in error.value.message
    assert str(tmp_path) not in error.value.message


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError):
        Model(tmp_path / "nothing.gguf")


@pytest.mark.parametrize(
    "text", ["", "Hello", " leading", "two\n\nlines", "日本語 👍🏽", "\x00\x01", "a" * 5000]
)
def test_text_survives_tokens(model: Model, text: str) -> None:
    ids = model.tokenize(text)
    assert model.detokenize(ids).decode() == text
    assert b"".join(model.token_bytes(token) for token in ids).decode() == text


def test_spelled_control_tokens_are_read_only_when_asked(model: Model) -> None:
    assert len(model.tokenize("<|im_end|>", parse_special=True)) == 1
    assert len(model.tokenize("<|im_end|>")) > 1
    assert "<|im_end|>" in model.control_tokens()
    (end,) = model.tokenize("<|im_end|>", parse_special=True)
    assert model.is_eog(end)
    assert model.token_bytes(end) == b""
    assert model.token_bytes(end, special=True) == b"<|im_end|>"


def test_what_the_file_says_is_there(model: Model) -> None:
    assert (model.n_vocab, model.n_ctx_train) == (49152, 8192)
    assert model.can_share_prefixes
    assert "im_start" in model.chat_template()
    assert model.metadata("general.architecture") == "llama"
    assert model.metadata("no.such.key") is None
    assert model.token_text(-1) == ""
    assert len(model.fingerprint()) == 32


def test_a_saved_state_comes_back_with_the_same_logits(
    model: Model, make_context: Callable[..., Context]
) -> None:
    context = make_context()
    prompt = words(model, 40)
    context.batch.add(prompt, 0, 3, last=True)
    assert context.decode() == 0
    state = context.save(3)

    def next_logits() -> np.ndarray:
        context.batch.clear()
        index = context.batch.add_one(17, 40, 3)
        assert context.decode() == 0
        return context.logits(index).copy()

    expected = next_logits()
    context.clear()
    assert context.last_position(3) == -1
    assert context.restore(3, state)
    assert context.last_position(3) == 39
    np.testing.assert_array_equal(next_logits(), expected)
    context.close()


def test_logits_of_a_token_list_are_those_of_one_pass(
    model: Model, make_context: Callable[..., Context]
) -> None:
    context = make_context()
    tokens = words(model, 70)
    rows = [row.argmax() for row in context.logits_of(tokens, start=10)]
    assert len(rows) == 60
    context.clear()
    context.batch.clear()
    index = context.batch.add(tokens, 0, 0, last=True)
    assert context.decode() == 0
    assert context.logits(index).argmax() == rows[-1]
    with pytest.raises(IndexError):
        context.logits(0)
    context.close()


def test_an_embedding_context_pools_each_input_by_itself(model: Model) -> None:
    context = EmbeddingContext(model, n_ctx=256, num_sequences=4)
    inputs = [words(model, size, start=size) for size in (5, 60, 9, 30, 100, 7)]
    together = context.embed(inputs)
    assert together.shape == (6, model.n_embd)
    alone = np.concatenate([context.embed([each]) for each in inputs])
    cosine = (together * alone).sum(1) / np.linalg.norm(together, axis=1) / np.linalg.norm(alone, axis=1)
    assert cosine.min() > 0.999
    with pytest.raises(BadRequest):
        context.embed([words(model, 300)])
    context.close()


def test_requantising_tells_how_far_it_is(model: Model, model_path: Path, tmp_path: Path) -> None:
    progress: list[float] = []
    target = tmp_path / "small.gguf"
    quantize(model_path, target, "q8_0", threads=1, progress=progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    copy = Model(target)
    assert "Q8_0" in copy.description()
    assert copy.tokenize("same words") == model.tokenize("same words")
    copy.close()
    with pytest.raises(BadRequest):
        quantize(model_path, target, "Q9_9")


# --------------------------------------------------------------------------------------------------- grammars

BROKEN_GRAMMARS = [
    "", " ", "\n\n", "root", "root ::=", "root := \"a\"", "rot ::= \"a\"", "root ::= missing", 'root ::= "a', "root ::= [a-",
    "root ::= (\"a\"", "root ::= \"a\")", "root ::= root \"a\"", "root ::= a\na ::= b\nb ::= a", "root ::= \"a\"{2", "root ::= \"a\"{x}",
    "root ::= \"a\"{999999999999}", "root ::= \"a\"{5000}", "root ::= *", "root ::= +\"a\"", "root ::= ?", 'root ::= "\\x"', 'root ::= "\\q"',
    "root ::= <[999999999]>", "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, 'root ::= "a"\0', "{}", "null", "SELECT 1",
    "root ::= \"a\" root2\nroot2 ::= root2", "::= \"a\"", "root ::= | |", "r" * 600_000,
]  # fmt: skip


@pytest.mark.parametrize("source", BROKEN_GRAMMARS, ids=range(len(BROKEN_GRAMMARS)))
def test_a_broken_grammar_is_refused_or_at_least_constrains(model: Model, source: str) -> None:
    try:
        grammar = Grammar(model, source)
    except BadRequest as refusal:
        sentence = refusal.message
        assert len(sentence) < 400
        return
    # What llama.cpp takes must not let everything through.
    candidates = Candidates(model.n_vocab)
    candidates.load(np.zeros(model.n_vocab, np.float32))
    grammar.mask(candidates)
    assert not np.isfinite(candidates._rows["logit"]).all()


BROKEN_SCHEMAS = [
    "", "{", "nul", "[]", "42", '"object"', "null", '{"type": "sound"}', '{"type": 5}', '{"type": ["object", "sound"]}', '{"type": {}}',
    '{"properties": []}', '{"properties": {"a": 1}}', '{"properties": {"a": null}}', '{"type": "object", "properties": {"a": {"type": "x"}}}',
    '{"$ref": "#/nowhere"}', '{"$ref": "http://example.com/schema"}', '{"$ref": "file:///etc/passwd"}', '{"$ref": 5}', '{"$ref": "nowhere"}',
    '{"anyOf": []}', '{"anyOf": {}}', '{"oneOf": 1}', '{"allOf": [1]}', '{"allOf": []}', '{"enum": []}', '{"enum": 3}', '{"required": "a"}',
    '{"type": "object", "required": [1]}', '{"type": "array", "items": 3}', '{"type": "array", "items": {"type": "string"}, "minItems": -1}',
    '{"type": "array", "items": {"type": "string"}, "minItems": 5, "maxItems": 2}', '{"type": "array", "items": {}, "maxItems": 1000000000}',
    '{"type": "string", "minLength": 1.5}', '{"type": "string", "maxLength": 100000000}', '{"type": "string", "minLength": "3"}',
    '{"type": "string", "minLength": true}', '{"type": "string", "pattern": "("}', '{"type": "string", "pattern": "^(a$"}',
    '{"type": "string", "pattern": "^a{1,9999999}$"}', '{"type": "string", "pattern": "^[a$"}', '{"type": "string", "pattern": 5}',
    '{"type": "string", "pattern": "^(?=a)b$"}', '{"type": "string", "pattern": "a"}', '{"type": "string", "format": 5, "pattern": "^*$"}',
    '{"properties": {"a": false}}', '{"items": false, "type": "array"}', '{"additionalProperties": 5, "type": "object"}',
    "[" * 10_000, '{"items":' * 5_000 + "{}" + "}" * 5_000, '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', '{"prefixItems": []}',
]  # fmt: skip


@pytest.mark.parametrize("schema", BROKEN_SCHEMAS, ids=range(len(BROKEN_SCHEMAS)))
def test_a_broken_schema_is_refused(model: Model, schema: str) -> None:
    with pytest.raises(EdgeCloudError) as error:
        Grammar(model, schema_grammar(schema), param="response_format")
    assert error.value.status == 400
    assert len(error.value.message) < 400


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
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["today"]),
]  # fmt: skip


def accepts(model: Model, source: str, text: str) -> bool:
    """Whether a grammar lets `text` be written to its end."""
    grammar, scratch = Grammar(model, source), Candidates(model.n_vocab)
    for token in model.tokenize(text):
        if not grammar.allows(token, scratch):
            return False
        grammar.accept(token)
    return grammar.allows(model.eos, scratch)


@pytest.mark.parametrize(("schema", "good", "bad"), GOOD_SCHEMAS, ids=range(len(GOOD_SCHEMAS)))
def test_a_schema_takes_what_fits_it_and_nothing_else(
    model: Model, schema: object, good: list[object], bad: list[object]
) -> None:
    source = schema_grammar(json.dumps(schema))
    for value in good:
        assert accepts(model, source, json.dumps(value, ensure_ascii=False)), value
    for value in bad:
        assert not accepts(model, source, json.dumps(value)), value


def test_json_mode_takes_any_object_and_only_objects(model: Model) -> None:
    for value in ({}, {"a": [1, -2.5e3, 'x"\\\n', None, True, {"b": {}}]}):
        assert accepts(model, JSON_OBJECT_GBNF, json.dumps(value))
        assert accepts(model, JSON_OBJECT_GBNF, json.dumps(value, indent=2))
    for text in ("[]", '"x"', "{", "{'a': 1}", '{"a": 01}', '{"a": 1,}'):
        assert not accepts(model, JSON_OBJECT_GBNF, text)


def test_a_clone_of_a_grammar_goes_its_own_way(model: Model) -> None:
    first, scratch = Grammar(model, 'root ::= "a" "b"'), Candidates(model.n_vocab)
    (a,), (b,) = model.tokenize("a"), model.tokenize("b")
    second = first.clone()
    first.accept(a)
    assert first.allows(b, scratch)
    assert not second.allows(b, scratch)
    assert second.allows(a, scratch)
