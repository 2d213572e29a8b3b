"""JSON schemas as GBNF."""

from __future__ import annotations

import json
import re
from typing import Any

from llama_cpp.llama_grammar import json_schema_to_gbnf

from edgecloud.errors import BadRequest

JSON_OBJECT_GBNF = r"""
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( string ":" ws value ws ( "," ws string ":" ws value ws )* )? "}"
array ::= "[" ws ( value ws ( "," ws value ws )* )? "]"
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\""
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,15} )? ( [eE] [-+]? [0-9]{1,3} )?
ws ::= ( " " | "\n" [ \t]{0,20} )?
"""

_ANY = {"type": ["object", "array", "string", "number", "boolean", "null"]}
_SHAPING = {
    "type", "properties", "additionalProperties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf",
    "allOf", "$ref", "pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "required",
}  # fmt: skip
_REPETITION_LIMIT = 2000


def schema_grammar(schema_text: str, *, param: str = "response_format") -> str:
    """The GBNF grammar of a JSON schema. Raises `BadRequest` for what is not a schema or can't be made a
    grammar.
    """
    try:
        schema = json.loads(schema_text)
        if not isinstance(schema, dict):
            raise BadRequest("A JSON schema must be an object.", param=param)
        grammar: str = json_schema_to_gbnf(json.dumps(_normalised(schema, param)))
        return grammar
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest("The JSON schema is nested too deeply.", param=param) from None
    except Exception as error:
        reason = str(error).split("\n")[0][:120] or type(error).__name__
        raise BadRequest(f"The JSON schema can't be turned into a grammar: {reason}.", param=param) from None


def _normalised(schema: Any, param: str) -> dict[str, Any]:
    """The schema in the words that the binding's converter knows; its silent misreadings become errors or
    are spelled out.
    """
    if schema is True or (isinstance(schema, dict) and not _SHAPING & schema.keys()):
        if isinstance(schema, dict) and ("$defs" in schema or "definitions" in schema):
            return {**schema, **_ANY}
        return dict(_ANY)
    if not isinstance(schema, dict):
        raise BadRequest(f"A JSON schema has {schema!r:.60} where a schema belongs.", param=param)
    result = dict(schema)
    for key in ("minLength", "maxLength", "minItems", "maxItems"):
        if key in result:
            value = result[key]
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _REPETITION_LIMIT:
                raise BadRequest(
                    f"In a JSON schema {key} must be a whole number from 0 to {_REPETITION_LIMIT}.",
                    param=param,
                )
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems")):
        if low in result and high in result and result[low] > result[high]:
            raise BadRequest(f"In a JSON schema {low} is above {high}: nothing can match.", param=param)
    if "pattern" in result:
        try:
            re.compile(result["pattern"])
        except (re.error, TypeError, OverflowError) as error:
            raise BadRequest(f"A pattern in the JSON schema is broken: {error}.", param=param) from None
    if any(int(n) > _REPETITION_LIMIT for n in re.findall(r"\d{4,}", str(result.get("pattern", "")))):
        raise BadRequest(
            f"A pattern in the JSON schema repeats more than {_REPETITION_LIMIT} times.", param=param
        )
    if "required" in result:
        required = result["required"]
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise BadRequest("In a JSON schema `required` must be a list of names.", param=param)
        # A required name without a schema may be anything, but it must be there.
        if not {"$ref", "anyOf", "oneOf", "allOf"} & result.keys():
            result["properties"] = {
                **result.get("properties", {}),
                **{n: True for n in required if n not in result.get("properties", {})},
            }
    if isinstance(result.get("enum"), list) and not result["enum"]:
        raise BadRequest("A JSON schema has an empty enum: nothing can match.", param=param)
    for key in ("properties", "$defs", "definitions"):
        if key in result:
            if not isinstance(result[key], dict):
                raise BadRequest(f"In a JSON schema `{key}` must be an object.", param=param)
            result[key] = {name: _normalised(part, param) for name, part in result[key].items()}
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in result:
            if not isinstance(result[key], list) or not result[key]:
                raise BadRequest(f"In a JSON schema `{key}` must be a list that is not empty.", param=param)
            result[key] = [_normalised(part, param) for part in result[key]]
    if isinstance(result.get("items"), list):
        result["items"] = [_normalised(part, param) for part in result["items"]]
    elif "items" in result:
        result["items"] = _normalised(result["items"], param)
    extra = result.get("additionalProperties")
    if isinstance(extra, dict):
        result["additionalProperties"] = _normalised(extra, param)
    elif extra is True:
        result["additionalProperties"] = dict(_ANY)
    elif extra not in (None, False):
        raise BadRequest("In a JSON schema `additionalProperties` must be a schema.", param=param)
    if result.get("type") == "object" and not result.get("properties") and extra is False:
        result["properties"] = {}
    return result
