"""JSON schemas and forced tool calls, as a mask over the vocabulary for each next token (llguidance).

What a schema asks for is enforced, or the request is refused: no answer is written that doesn't validate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import llguidance

from edgecloud.errors import BadRequest
from edgecloud.schema_places import ROOT, SCHEMA_LISTS, SCHEMA_MAPS, SCHEMAS, find_fault, inside
from edgecloud.types import Constraint
from edgecloud.vocabulary import Vocabulary

# What a person would call layout; without a bound, small models write blanks for ever.
_OPTIONS = {"whitespace_pattern": r" ?|\n[ \t]{0,20}", "lenient": False, "coerce_one_of": False}
# A tenth of a second for the worst pattern seen, instead of seconds.
_LIMITS = llguidance.LLParserLimits(initial_lexer_fuel=200_000, verbose_errors=False)

_REFUSED = frozenset({
    "not", "if", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties",
    "$dynamicRef", "$recursiveRef",
})  # fmt: skip
# With these values a refused keyword asks for nothing.
_IDLE = {"uniqueItems": False, "propertyNames": True, "unevaluatedItems": True, "unevaluatedProperties": True}
# Other formats are notes to the reader, as the standard has it.
_FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip


class _Asked(NamedTuple):
    """What an answer must match, as llguidance compiles it; `schemas` are those that went into it."""

    source: str
    what: str
    param: str
    schemas: tuple[dict[str, Any], ...] = ()


class SchemaCompiler:
    """Compiles for one vocabulary. `markup_ids` are control tokens that come out as the text they spell.

    The first use takes about 10 microseconds a token of the vocabulary. May be used from any thread.
    """

    def __init__(self, vocabulary: Vocabulary, markup_ids: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._markup_ids = markup_ids

    def compile(self, constraint: Constraint) -> SchemaGrammar:
        """The grammar of a constraint of any kind but 'grammar'.

        Raises `BadRequest` for what is none or can't be enforced, with the keyword and its place.
        """
        asked = _read(constraint)
        return SchemaGrammar(_begun(self._tokenizer, asked), self._vocabulary.eog_ids, asked)

    @cached_property
    def _tokenizer(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(self._vocabulary, self._markup_ids)),
            eos_token=sorted(self._vocabulary.eog_ids),
        )


def check(constraint: Constraint) -> None:
    """Raise the `BadRequest` that compiling would, before there is a model: a schema or a pattern that can't
    be enforced on bytes can't be on anybody's tokens. (Calls are written in the tokens of one model.)
    """
    if constraint.kind in ("schema", "regex"):
        _begun(llguidance.LLTokenizer("byte"), _read(constraint))


class SchemaGrammar:
    """Where one answer stands in what was asked of it."""

    def __init__(self, matcher: llguidance.LLMatcher, eog_ids: frozenset[int], asked: _Asked) -> None:
        self._matcher = matcher
        self._eog_ids = eog_ids
        self._asked = asked

    @property
    def param(self) -> str:
        """The field of the request that asked for it."""
        return self._asked.param

    def clone(self) -> SchemaGrammar:
        """Another answer under the same schema, from the state this one is in."""
        return SchemaGrammar(self._matcher.deep_copy(), self._eog_ids, self._asked)

    def allows(self, token: int) -> bool:
        """Whether the token may come next: a thousand times cheaper than asking about all."""
        if token in self._eog_ids:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1

    def allowed(self) -> bytes:
        """One bit per token of the vocabulary, least significant first: whether it may come next.

        Raises `BadRequest` when the schema has become too much to follow.
        """
        bits = self._matcher.compute_bitmask()
        self._check()
        return bits

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        # In an error the matcher would let the answer end, valid or not.
        if self._matcher.is_error():
            raise BadRequest(
                f"The {self._asked.what} can't be followed any further: {_reason(self._matcher)}.",
                param=self._asked.param,
            )


class _Tokens:
    """A model's tokens as llguidance wants them: bytes, with 0xFF before those that are no text."""

    def __init__(self, vocabulary: Vocabulary, markup_ids: frozenset[int]) -> None:
        self.eos_token_id = min(vocabulary.eog_ids, default=0)
        self.bos_token_id = vocabulary.bos if vocabulary.bos >= 0 else None
        self.tokens = [
            vocabulary.token_bytes(token, special=token in markup_ids) or b"\xff<%d>" % token
            for token in range(vocabulary.n_vocab)
        ]
        self._vocabulary = vocabulary

    def __call__(self, text: bytes) -> list[int]:
        return self._vocabulary.tokenize(text.decode(errors="replace"))


def _read(constraint: Constraint) -> _Asked:
    param = constraint.param
    match constraint.kind:
        case "json":
            return _read_schema('{"type": "object"}', param)
        case "schema":
            return _read_schema(constraint.source, param)
        case "regex":
            source = llguidance.LLMatcher.grammar_from_regex(constraint.source)
            return _Asked(source, "regular expression", param)
        case "calls":
            schemas = [_enforceable_whole(schema, param) for schema in json.loads(constraint.schemas)]
            rules = [
                f"arguments{number}: %json {_source(schema, param)}" for number, schema in enumerate(schemas)
            ]
            return _Asked("\n".join([constraint.source, *rules]), "JSON schema", param, tuple(schemas))
        case "grammar":
            raise ValueError("GBNF is llama.cpp's, and not followed here")


def _read_schema(text: str, param: str) -> _Asked:
    try:
        parsed = json.loads(text)
    except RecursionError:
        raise BadRequest("The JSON schema is nested too deeply.", param=param) from None
    except ValueError as error:
        raise BadRequest(f"The JSON schema is not JSON: {error}.", param=param) from None
    schema = _enforceable_whole(parsed, param)
    source = llguidance.LLMatcher.grammar_from_json_schema(_source(schema, param))
    return _Asked(source, "JSON schema", param, (schema,))


def _begun(tokenizer: llguidance.LLTokenizer, asked: _Asked) -> llguidance.LLMatcher:
    """The matcher of what was asked, at its start. Raises `BadRequest` if that can't be enforced."""
    matcher = _tried(tokenizer, asked.source)
    if matcher.is_error():
        place = _fault_place(asked)
        raise BadRequest(f"The {asked.what} can't be enforced{place}: {_reason(matcher)}.", param=asked.param)
    return matcher


def _tried(tokenizer: llguidance.LLTokenizer, source: str) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(tokenizer, source, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        # A reference to itself comes to light with the first step.
        matcher.compute_bitmask()
    return matcher


def _fault_place(asked: _Asked) -> str:
    """The first of the schemas that is wrong by itself, if any is, and the keyword for which it is."""
    tokenizer = llguidance.LLTokenizer("byte")

    def is_wrong(schema: dict[str, Any]) -> bool:
        source = llguidance.LLMatcher.grammar_from_json_schema(_source(schema, asked.param))
        return bool(_tried(tokenizer, source).is_error())

    try:
        for number, schema in enumerate(asked.schemas, 1):
            if is_wrong(schema):
                whose = f" (the parameters of function {number})" if len(asked.schemas) > 1 else ""
                return f" at {find_fault(schema, is_wrong)}{whose}"
    except RecursionError:
        pass  # nearly too deep to be read, and told of without a place
    return ""


def _enforceable_whole(schema: Any, param: str) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise BadRequest("A JSON schema must be an object.", param=param)
    try:
        enforceable: dict[str, Any] = _enforceable(schema, ROOT, param)
        if not _mentions(schema, "allOf"):
            _close(enforceable)
        return enforceable
    except RecursionError:
        raise BadRequest("The JSON schema is nested too deeply.", param=param) from None


def _source(schema: dict[str, Any], param: str) -> str:
    """What llguidance compiles; our options win over the schema's own."""
    try:
        return json.dumps({**schema, "x-guidance": _OPTIONS})
    except RecursionError:
        raise BadRequest("The JSON schema is nested too deeply.", param=param) from None


def _enforceable(schema: Any, path: str, param: str) -> Any:
    """The schema without what is only a note. Refuses by name what llguidance can't enforce."""
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for key, value in schema.items():
        place = inside(path, key)
        if key in _REFUSED:
            if key not in _IDLE or value is not _IDLE[key]:
                raise BadRequest(f"A JSON schema with {key!r} can't be enforced (at {place}).", param=param)
        elif key in ("$schema", "x-guidance") or (
            key == "format" and isinstance(value, str) and value not in _FORMATS
        ):
            continue
        elif key in SCHEMA_MAPS and isinstance(value, dict):
            result[key] = {
                name: _enforceable(part, inside(place, name), param) for name, part in value.items()
            }
        elif key in SCHEMA_LISTS or (key == "items" and isinstance(value, list)):
            result[key] = _enforceable_list(value, place, param)
        elif key in SCHEMAS:
            result[key] = _enforceable(value, place, param)
        else:
            result[key] = value
    _check_numbers(result, path, param)
    return result


def _close(schema: Any) -> None:
    """Objects that list their properties get no others, unless the schema says what others may be.

    Names of its own choosing are valid, but nobody asked for them, and a small model writes them until the
    context is full. (Not under `allOf`, where each branch would forbid the other's.)
    """
    if isinstance(schema, list):
        for part in schema:
            _close(part)
    elif isinstance(schema, dict):
        named, required = schema.get("properties"), schema.get("required", [])
        if isinstance(named, dict) and "patternProperties" not in schema and isinstance(required, list):
            # A required name that is not listed needs the object open.
            schema.setdefault("additionalProperties", not named.keys() >= set(map(str, required)))
        for key in SCHEMA_LISTS | SCHEMAS:
            _close(schema.get(key))
        for key in SCHEMA_MAPS:
            _close(list(schema[key].values()) if isinstance(schema.get(key), dict) else None)


def _mentions(schema: Any, keyword: str) -> bool:
    if isinstance(schema, list):
        return any(_mentions(part, keyword) for part in schema)
    return isinstance(schema, dict) and (
        keyword in schema or any(_mentions(part, keyword) for part in schema.values())
    )


def _enforceable_list(value: Any, place: str, param: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise BadRequest(
            f"In the JSON schema {place} must be a list of schemas that is not empty.", param=param
        )
    return [_enforceable(part, inside(place, index), param) for index, part in enumerate(value)]


def _check_numbers(schema: dict[str, Any], path: str, param: str) -> None:
    step = schema.get("multipleOf")
    if step is not None and not (isinstance(step, int | float) and step > 0):
        place = inside(path, "multipleOf")
        raise BadRequest(f"In the JSON schema {place} must be above 0.", param=param)
    # Free names may repeat, and those that do are one property to who reads the object.
    wanted, required = schema.get("minProperties"), schema.get("required")
    distinct = 1 + len(required if isinstance(required, list) else ())
    if isinstance(wanted, int) and wanted > distinct:
        raise BadRequest(
            f"A JSON schema with minProperties {wanted} can't be enforced (at "
            f"{inside(path, 'minProperties')}): list names in 'required'.",
            param=param,
        )


def _reason(matcher: llguidance.LLMatcher) -> str:
    """llguidance's complaint as half a sentence."""
    lines: Iterable[str] = [line.strip() for line in matcher.get_error().splitlines() if line.strip()]
    first, *rest = lines or ["no reason was given"]
    if first.startswith("oneOf constraints are not supported"):
        return "the branches of a oneOf can't be told apart, use anyOf"
    if "regex parse error" in first:
        cause = next((line.removeprefix("error: ") for line in rest if line.startswith("error: ")), first)
        return f"a pattern can't be read ({cause[:160]})"
    if re.fullmatch("[A-Z][A-Za-z]+", first):
        # The name of a state inside, not a sentence: TooComplex, NoExtension and the like.
        return "it is too much to follow" if "Complex" in first else "it asks for something that has no end"
    return first[:200].rstrip(".")
