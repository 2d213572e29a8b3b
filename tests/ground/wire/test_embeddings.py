"""Embeddings, and the list of models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from openai import OpenAI
from openai.types import CreateEmbeddingResponse
from openai.types import Model as OpenAIModel

from edgecloud.errors import BadRequest
from edgecloud.types import EmbedResult, ModelCard
from edgecloud.wire import openai_embeddings, openai_models

from .answers import PATIENT, json_values
from .judges import canned, judge

RESULT = EmbedResult(((0.6, -0.8), (1.0, 0.0)), "minilm", 9)


@pytest.mark.parametrize(
    ("value", "inputs"),
    [
        ("hi", ("hi",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2]], ((1,), (2,))),
    ],
)
def test_an_input_is_text_or_token_ids_one_or_many(value: Any, inputs: tuple[Any, ...]) -> None:
    request, encoding = openai_embeddings.parse({"input": value, "model": "minilm", "dimensions": 64})
    assert (request.inputs, request.model, request.dimensions, encoding) == (inputs, "minilm", 64, "float")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"model": 5}, "model"),
    ],
)
def test_a_bad_field_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        openai_embeddings.parse({"input": "x", **fields})
    assert caught.value.param == param


def test_vectors_as_floats() -> None:
    body = openai_embeddings.body(RESULT, "minilm", "float")
    parsed = judge(CreateEmbeddingResponse, body)
    assert [(entry.index, entry.embedding) for entry in parsed.data] == [(0, [0.6, -0.8]), (1, [1.0, 0.0])]
    assert (parsed.usage.prompt_tokens, parsed.usage.total_tokens, parsed.model) == (9, 9, "minilm")


def test_auto_names_the_model_that_answered() -> None:
    assert openai_embeddings.body(RESULT, "auto", "float")["model"] == "minilm"
    assert openai_embeddings.body(RESULT, "small", "float")["model"] == "small"


def test_the_sdk_reads_base64_as_the_same_numbers() -> None:
    body = openai_embeddings.body(RESULT, "minilm", "base64")
    assert all(isinstance(entry["embedding"], str) for entry in body["data"])
    with canned(json.dumps(body).encode()) as url:
        answer = OpenAI(base_url=url, api_key="x", max_retries=0).embeddings.create(input="x", model="minilm")
    assert [entry.embedding for entry in answer.data] == [pytest.approx([0.6, -0.8]), [1.0, 0.0]]


@PATIENT
@given(json_values())
def test_any_json_is_a_request_or_a_bad_request(value: Any) -> None:
    for body in (value, {"input": value}, {"input": "x", "dimensions": value, "encoding_format": value}):
        try:
            request, _ = openai_embeddings.parse(body)
        except BadRequest:
            continue
        assert request.inputs
        assert all(isinstance(text, str | tuple) for text in request.inputs)
        json.dumps(request.inputs, ensure_ascii=False).encode()


def test_the_model_list_is_openais_with_the_context_under_every_name() -> None:
    small = ModelCard("smollm2", "chat", "local", ("small",), 8192, 5, True, parameters=135, continues=True)
    cards = [small, ModelCard("auto", "auto"), ModelCard("minilm", "embedding")]
    body = openai_models.list_body(cards)
    extensions = ("kind", "aliases", "loaded", "context_length", "max_model_len", "meta")
    extensions += ("type", "display_name", "created_at", "continue_final_message")
    for entry in body["data"]:
        judge(OpenAIModel, entry, extensions=extensions)
    first, second, third = body["data"]
    assert body["object"] == "list"
    assert (first["id"], first["owned_by"], first["aliases"]) == ("smollm2", "local", ["small"])
    assert first["context_length"] == first["max_model_len"] == first["meta"]["n_ctx"] == 8192
    assert second["owned_by"] == "edgecloud"
    assert "context_length" not in second
    assert first["meta"]["n_params"] == 135
    assert "meta" not in second
    assert (first["continue_final_message"], second["continue_final_message"]) == (True, False)
    assert "continue_final_message" not in third
