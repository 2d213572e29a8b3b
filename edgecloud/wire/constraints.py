"""What the answer must match: OpenAI's `response_format`, llama.cpp's `json_schema` and `grammar`, SGLang's
`regex` and `ebnf`, and vLLM's `structured_outputs` with the `guided_…` fields before it.
"""

from __future__ import annotations

import json
from typing import Any

from edgecloud.errors import BadRequest
from edgecloud.types import Constraint

from .common import compact
from .fields import Fields, plain, text


def constraint(body: Fields) -> Constraint | None:
    """At most one of them all, by however many names; never silently none when one was asked for."""
    found = [
        response_format(body, "response_format"),
        _schema(body, "json_schema"),
        _grammar(body, "grammar"),
        _grammar(body, "ebnf"),
        _regex(body, "regex"),
        *_guided(body, "guided_"),
        *_structured_outputs(body),
    ]
    asked = list(dict.fromkeys(limit for limit in found if limit is not None))
    if len(asked) > 1:
        raise BadRequest(
            "Only one of response_format, json_schema, grammar, regex and the like can hold the answer.",
            param=asked[-1].param,
        )
    return asked[0] if asked else None


def response_format(body: Fields, name: str) -> Constraint | None:
    """`text`, `json_object` or `json_schema`; the schema nested as in OpenAI's chat or flat beside `type`."""
    form = body.object(name)
    if form is None:
        return None
    form.require("type")
    kind = form.choice("type", "text", "json_object", "json_schema")
    if kind == "text":
        return None
    nested = form.object("json_schema")
    schema = form.json("schema") if nested is None else nested.json("schema")
    if schema is not None:
        return Constraint("schema", compact(schema), param=body.param(name))
    if kind == "json_schema":
        raise form.wrong("json_schema", "needs a schema")
    return Constraint("json", param=body.param(name))


def _structured_outputs(body: Fields) -> list[Constraint | None]:
    wanted = body.object("structured_outputs")
    if wanted is None:
        return []
    found = _guided(wanted, "")
    if not any(found):
        raise body.wrong("structured_outputs", "needs one of json, json_object, choice, regex and grammar")
    return found


def _guided(body: Fields, prefix: str) -> list[Constraint | None]:
    if body.has(f"{prefix}structural_tag"):
        raise body.wrong(f"{prefix}structural_tag", "is not supported: ask for a grammar or a schema")
    return [
        _schema(body, f"{prefix}json"),
        Constraint("json", param=body.param(f"{prefix}json_object"))
        if body.flag(f"{prefix}json_object")
        else None,
        _choice(body, f"{prefix}choice"),
        _regex(body, f"{prefix}regex"),
        _grammar(body, f"{prefix}grammar"),
    ]


def _schema(body: Fields, name: str) -> Constraint | None:
    """A schema, or the JSON text of one."""
    schema: Any = body.get(name)
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise body.wrong(name, "is not valid JSON") from None
        if not isinstance(schema, dict):
            raise body.wrong(name, "must be an object")
        plain(schema, body.param(name))
    else:
        schema = body.json(name)
    return None if schema is None else Constraint("schema", compact(schema), param=body.param(name))


def _grammar(body: Fields, name: str) -> Constraint | None:
    grammar = body.text(name)
    if grammar is None:
        return None
    if not grammar.strip():
        raise body.wrong(name, "must not be empty")
    return Constraint("grammar", grammar, param=body.param(name))


def _regex(body: Fields, name: str) -> Constraint | None:
    """A pattern for the whole answer."""
    pattern = body.text(name)
    if pattern is None:
        return None
    if not pattern:
        raise body.wrong(name, "must not be empty")
    return Constraint("regex", pattern, param=body.param(name))


def _choice(body: Fields, name: str) -> Constraint | None:
    """One of some texts, as they are."""
    choices = body.list(name)
    if choices is None:
        return None
    texts = [text(choice, f"{body.param(name)}[{number}]") for number, choice in enumerate(choices)]
    if not texts or not all(texts):
        raise body.wrong(name, "must be a list of texts, and none of them empty")
    source = "root ::= " + " | ".join(_literal(choice) for choice in texts)
    return Constraint("grammar", source, param=body.param(name))


def _literal(choice: str) -> str:
    """A text in GBNF."""
    return '"' + "".join(f"\\U{ord(c):08X}" if c in '"\\' or ord(c) < 32 else c for c in choice) + '"'
