"""Our OpenAPI document, made from the route table so that it can't forget a route; bodies are described
loosely, as clients send them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.routing import Route

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 1}
_SOME_TEXT = {"type": "string", "minLength": 1}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": _TEXT},
    },
}


def _messages(*roles: str) -> dict[str, Any]:
    message = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": list(roles)}, "content": {"anyOf": [_TEXT, _PARTS]}},
    }
    return {"type": "array", "minItems": 1, "items": message}


_MESSAGES = _messages("system", "developer", "user", "assistant")
_TURNS = _messages("user", "assistant")
_SAMPLING = {
    "model": _SOME_TEXT,
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": 0},
    "stream": _FLAG,
}
_OPENAI = _SAMPLING | {
    "max_tokens": _COUNT,
    "n": {"type": "integer", "minimum": 1, "maximum": 128},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 16}]},
    "seed": {"type": "integer"},
    "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
}
_PROMPT = {"anyOf": [_SOME_TEXT, _IDS | {"minItems": 1}]}
_PROMPTS = {"anyOf": [_PROMPT, {"type": "array", "items": _PROMPT, "minItems": 1, "maxItems": 128}]}

# What each path wants: required fields, and the fields there are.
_BODIES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "/chat/completions": (
        ["messages"],
        _OPENAI | {"messages": _MESSAGES, "max_completion_tokens": _COUNT, "logprobs": _FLAG},
    ),
    "/chat/completions/input_tokens": (["messages"], {"model": _SOME_TEXT, "messages": _MESSAGES}),
    "/route/explain": (["messages"], _OPENAI | {"messages": _MESSAGES}),
    "/route/feedback": (["id", "verdict"], {"id": _SOME_TEXT, "verdict": _SOME_TEXT}),
    "/completions": (["prompt"], _OPENAI | {"prompt": _PROMPTS, "echo": _FLAG}),
    "/embeddings": (
        ["input"],
        {"model": _SOME_TEXT, "input": _PROMPTS, "encoding_format": {"enum": ["float", "base64"]}},
    ),
    "/responses": (
        ["input"],
        _SAMPLING | {"input": _TEXT, "instructions": _TEXT, "max_output_tokens": _COUNT},
    ),
    "/responses/input_tokens": (["input"], {"model": _SOME_TEXT, "input": _TEXT}),
    "/messages": (
        ["max_tokens", "messages"],
        _SAMPLING | {"max_tokens": _COUNT, "messages": _TURNS, "system": _TEXT},
    ),
    "/messages/count_tokens": (["messages"], {"model": _SOME_TEXT, "messages": _TURNS, "system": _TEXT}),
    "/tokenize": (
        ["content"],
        {"model": _SOME_TEXT, "content": _TEXT, "add_special": _FLAG, "with_pieces": _FLAG},
    ),
    "/prefixes": (["messages"], {"model": _SOME_TEXT, "messages": _MESSAGES}),
    "/detokenize": (["tokens"], {"model": _SOME_TEXT, "tokens": _IDS}),
}
_ERROR = {
    "description": "What is wrong, in one sentence.",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an app's own routes."""
    paths: dict[str, Any] = {}
    for route in app.routes:
        if isinstance(route, Route) and route.path != app.openapi_url:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(route.path_format, {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": app.title, "version": app.version},
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }


def _operation(route: Route, method: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}_{route.path_format.strip('/').replace('/', '_')}",
        "responses": {"200": {"description": "The answer."}, "default": _ERROR},
    }
    if route.param_convertors:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in route.param_convertors
        ]
    described = _BODIES.get(route.path.removeprefix("/v1"))
    if described is not None and method == "POST":
        required, properties = described
        schema = {"type": "object", "required": required, "properties": properties}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation
