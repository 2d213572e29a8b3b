"""Reads fields of decoded JSON: null is absent, a wrong type or range is a `BadRequest` naming the field.

Messages never hold the value, so that a megabyte of nonsense gives a small error and nothing of the user's is
echoed. Text that is not valid Unicode (a lone surrogate such as the JSON escape `\\ud800`) is refused here:
it can't be encoded as UTF-8, and no tokenizer may ever see it. So are NaN and the infinities, which Python's
JSON reader lets through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from edgecloud.errors import BadRequest

INT64 = 2**63
MAX_DEPTH = 100


class Fields:
    """One JSON object of a request, with the dotted path to it (`messages[0]`)."""

    __slots__ = ("data", "path")

    def __init__(self, data: Any, path: str = "") -> None:
        if not isinstance(data, dict):
            raise BadRequest(
                f"{path} must be an object." if path else "The body must be a JSON object.",
                param=path or None,
            )
        self.data: dict[str, Any] = data
        self.path = path

    def param(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def wrong(self, name: str, what: str) -> BadRequest:
        """The error to raise: the field's path followed by what is wrong with it."""
        return BadRequest(f"{self.param(name)} {what}.", param=self.param(name))

    def get(self, name: str) -> Any:
        return self.data.get(name)

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def require(self, name: str) -> Any:
        value = self.data.get(name)
        if value is None:
            raise self.wrong(name, "is required")
        return value

    def text(self, name: str, *, longest: int | None = None) -> str | None:
        """A string of at most `longest` characters, or None."""
        value = self.data.get(name)
        return None if value is None else text(value, self.param(name), longest=longest)

    def required_text(self, name: str) -> str:
        return text(self.require(name), self.param(name))

    def name(self, name: str, *, longest: int = 256) -> str:
        """A required, non-empty, short string: an id, a role, the name of a function."""
        value = text(self.require(name), self.param(name), longest=longest)
        if not value:
            raise self.wrong(name, "must not be empty")
        return value

    def choice(self, name: str, *allowed: str) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            raise self.wrong(name, f"must be one of {', '.join(allowed)}")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "must be true or false")
        return value

    def integer(self, name: str, low: int = -INT64, high: int = INT64 - 1) -> int | None:
        """A whole number within the closed range; 5.0 counts as 5, true does not count as 1."""
        value = self.data.get(name)
        return None if value is None else integer(value, self.param(name), low, high)

    def number(self, name: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A finite number in [low, high], or in (low, high] with `above`."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "must be a number")
        # A NaN fails both comparisons, and an int too large for a float is compared exactly.
        if not (low <= value <= high) or (above and value == low):
            raise self.wrong(name, f"must be {'above' if above else 'at least'} {low:g} and at most {high:g}")
        return float(value)

    def list(self, name: str) -> list[Any] | None:
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            raise self.wrong(name, "must be a list")
        return value

    def object(self, name: str) -> Fields | None:
        value = self.data.get(name)
        return None if value is None else Fields(value, self.param(name))

    def inner(self, name: str) -> Fields:
        """A required object."""
        return Fields(self.require(name), self.param(name))

    def objects(self, name: str) -> Iterator[Fields]:
        """The objects of a list, none for an absent one."""
        for number, item in enumerate(self.list(name) or ()):
            yield Fields(item, f"{self.param(name)}[{number}]")

    def json(self, name: str) -> dict[str, Any] | None:
        """An object whose inside is the caller's own: a schema, template arguments."""
        fields = self.object(name)
        if fields is None:
            return None
        plain(fields.data, fields.path)
        return fields.data


def text(value: Any, path: str, *, longest: int | None = None) -> str:
    """The value as valid Unicode text."""
    if not isinstance(value, str):
        raise BadRequest(f"{path} must be a string.", param=path)
    if longest is not None and len(value) > longest:
        raise BadRequest(f"{path} must be at most {longest} characters long.", param=path)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadRequest(
                f"{path} is not valid Unicode: it holds half of a character (a lone surrogate such as "
                "\\ud83d), so the text was cut in two before it was sent.",
                param=path,
            ) from None
    return value


def integer(value: Any, path: str, low: int, high: int) -> int:
    """The value as a whole number of the closed range. Raises `BadRequest`."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadRequest(f"{path} must be an integer.", param=path)
    if not low <= value <= high:
        if high >= INT64 - 1:
            within = "fit in 64 bits" if low <= -INT64 else f"be between {low} and {high}, which is 64 bits"
        else:
            within = f"be between {low} and {high}"
        raise BadRequest(f"{path} must {within}.", param=path)
    return value


def token_ids(value: list[Any], path: str) -> tuple[int, ...]:
    """A list of token ids; whether they are in the vocabulary is for the engine to say."""
    return tuple(integer(item, f"{path}[{number}]", 0, 2**31 - 1) for number, item in enumerate(value))


def inputs(value: Any, path: str, most: int) -> list[str | tuple[int, ...]]:
    """A string, a list of token ids, or a list of up to `most` of either; none of them empty."""
    if isinstance(value, str):
        return [_input(value, path)]
    if not isinstance(value, list) or not value:
        raise BadRequest(
            f"{path} must be a string or a list of strings or token ids, and not empty.", param=path
        )
    if not isinstance(value[0], str | list):
        return [_input(value, path)]
    if len(value) > most:
        raise BadRequest(f"{path} may hold at most {most} entries.", param=path)
    return [_input(item, f"{path}[{number}]") for number, item in enumerate(value)]


def _input(value: Any, path: str) -> str | tuple[int, ...]:
    result = token_ids(value, path) if isinstance(value, list) else text(value, path)
    if not result:
        raise BadRequest(f"{path} must not be empty.", param=path)
    return result


def plain(value: Any, path: str, depth: int = 0) -> None:
    """Check JSON that is the caller's own: valid Unicode, finite numbers, at most `MAX_DEPTH` deep."""
    if isinstance(value, str):
        text(value, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f"{path} holds a number that is not finite.", param=path)
    elif isinstance(value, dict | list):
        if depth == MAX_DEPTH:
            raise BadRequest(f"{path} is nested more than {MAX_DEPTH} deep.", param=path)
        if isinstance(value, dict):
            for key in value:
                text(key, path)
            value = value.values()
        for item in value:
            plain(item, path, depth + 1)
