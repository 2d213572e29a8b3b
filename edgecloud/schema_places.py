"""Where in a JSON schema something is, as a JSON pointer, and where the fault of one is that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose value is an object of schemas by name."""
SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
SCHEMAS = frozenset({"items", "additionalItems", "additionalProperties"})
"""Keywords whose value is one schema; `items` is a list of them in older drafts."""

ROOT = "#"
_MOST_TRIALS = 500  # half a millisecond each; a schema of more parts is only told to be wrong somewhere


def inside(place: str, *keys: str | int) -> str:
    """The JSON pointer (RFC 6901, in its `#/…` form) of what is at `keys` under `place`."""
    return "/".join([place, *(str(key).replace("~", "~0").replace("/", "~1") for key in keys)])


def find_fault(schema: dict[str, Any], is_wrong: Callable[[dict[str, Any]], bool]) -> str:
    """The place of the keyword for which a whole schema is wrong, found by trying its parts by themselves.

    Compilers say what they can't do and seldom where. The deepest part that is wrong by itself has the fault,
    and there the keyword without which it would be right; where it takes two to be wrong, the part itself.
    `is_wrong` is asked about whole schemas, at most some hundred times.
    """
    whole: dict[str, Any] = json.loads(json.dumps(schema))
    whole.pop("$id", None)  # what it is called elsewhere would be where its references lead
    trials = 0

    def fails(place: str) -> bool:
        nonlocal trials
        trials += 1
        return trials <= _MOST_TRIALS and is_wrong(_alone(whole, place))

    place, part = ROOT, whole
    while found := next(((at, child) for at, child in _parts(part, place) if fails(at)), None):
        place, part = found
    given = dict(part)
    for key in given:
        part.clear()
        part.update({other: value for other, value in given.items() if other != key})
        if not fails(place) and trials <= _MOST_TRIALS:
            return inside(place, key)
    return place


def _parts(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, value in schema.items():
        found: list[tuple[str, Any]] = []
        if key in SCHEMA_MAPS and isinstance(value, dict):
            found = [(inside(place, key, name), part) for name, part in value.items()]
        elif key in SCHEMA_LISTS | SCHEMAS and isinstance(value, list):
            found = [(inside(place, key, index), part) for index, part in enumerate(value)]
        elif key in SCHEMAS:
            found = [(inside(place, key), value)]
        yield from ((at, part) for at, part in found if isinstance(part, dict))


def _alone(whole: dict[str, Any], place: str) -> dict[str, Any]:
    """The part at `place` as a schema of its own, with the whole beside it for what it refers to."""
    home = "#/$defs/whole"
    return {"$ref": home + quote(place[1:], safe="/~$"), "$defs": {"whole": _moved(whole, home)}}


def _moved(value: Any, home: str) -> Any:
    if isinstance(value, list):
        return [_moved(item, home) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: home + item[1:]
        if key == "$ref" and isinstance(item, str) and (item == ROOT or item.startswith("#/"))
        else _moved(item, home)
        for key, item in value.items()
    }
