"""What the answer must match: OpenAI's `response_format`, llama.cpp's `json_schema` and `grammar`."""

from __future__ import annotations

from edgecloud.errors import BadRequest
from edgecloud.types import Constraint

from .common import compact
from .fields import Fields


def constraint(body: Fields) -> Constraint | None:
    """At most one of the three; never silently none when something was asked for."""
    found = [
        limit
        for limit in (response_format(body, "response_format"), _schema(body), _grammar(body))
        if limit is not None
    ]
    if len(found) > 1:
        raise BadRequest(
            "Only one of response_format, json_schema and grammar can be asked for.", param="response_format"
        )
    return found[0] if found else None


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
        return Constraint("schema", compact(schema))
    if kind == "json_schema":
        raise form.wrong("json_schema", "needs a schema")
    return Constraint("json")


def _schema(body: Fields) -> Constraint | None:
    schema = body.json("json_schema")
    return None if schema is None else Constraint("schema", compact(schema))


def _grammar(body: Fields) -> Constraint | None:
    grammar = body.text("grammar")
    if grammar is None:
        return None
    if not grammar.strip():
        raise body.wrong("grammar", "must not be empty")
    return Constraint("grammar", grammar)
