"""Our own types as JSON, for the private socket: one object per line, tagged with the name of its class.

What equals its default is left out. Both ends are the same version of edgecloud, so a tag, a field or a type
that is not known is an error, never guessed at.
"""

from __future__ import annotations

import base64
import binascii
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from edgecloud import errors
from edgecloud.errors import BadRequest, EdgeCloudError
from edgecloud.types import (
    Capabilities,
    ChatRequest,
    ChoiceDone,
    Done,
    EmbedRequest,
    EmbedResult,
    Finish,
    Health,
    ModelCard,
    Notice,
    ReasoningDelta,
    Start,
    TextDelta,
    ToolCallDelta,
)

Native = (
    ChatRequest
    | EmbedRequest
    | EmbedResult
    | Start
    | TextDelta
    | ReasoningDelta
    | ToolCallDelta
    | ChoiceDone
    | Notice
    | Done
    | Finish
    | Capabilities
    | Health
    | ModelCard
    | EdgeCloudError
)
Read = Callable[[Any, str], Any]
Record = TypeVar("Record")


def dump(value: Native) -> dict[str, Any]:
    """The value as a JSON object with its class name under `type`; bytes are base64."""
    # By far the most common, so not by reflection.
    if type(value) is TextDelta and not value.logprobs:
        plain: dict[str, Any] = {"type": "TextDelta", "text": value.text}
        if value.index:
            plain["index"] = value.index
        if value.num_tokens != 1:
            plain["num_tokens"] = value.num_tokens
        return plain
    if isinstance(value, EdgeCloudError):
        return _dump_error(value)
    if type(value) not in _CLASSES.values():
        raise TypeError(f"{type(value).__name__} does not travel over the socket.")
    return {"type": type(value).__name__, **_dump_fields(value)}


def dump_record(value: Any) -> dict[str, Any]:
    """Any frozen dataclass of ours as a JSON object, without a tag: for a database, whose reader knows.

    Raises `TypeError` for a field that JSON has no form for.
    """
    return _dump_fields(value)


def load_record(cls: type[Record], value: Any) -> Record:
    """What `dump_record` wrote of this class. Raises `BadRequest` where it was another version's."""
    record: Record = _read_dataclass(cls)(value, cls.__name__)
    return record


def load(value: Any) -> Any:
    """The object that `dump` wrote, one of `Native`: which, the caller knows from what was asked.

    Raises `BadRequest` naming what is not known or has the wrong type. An error is returned, not raised.
    """
    if not isinstance(value, dict):
        raise BadRequest("A message on the socket must be a JSON object.")
    tag = value.get("type")
    rest = {key: item for key, item in value.items() if key != "type"}
    if isinstance(tag, str):
        if tag in _CLASSES:
            return _read_dataclass(_CLASSES[tag])(rest, tag)
        if tag in _ERRORS:
            return _load_error(_ERRORS[tag], rest, tag)
    raise BadRequest("A message on the socket has a type that this version doesn't know.", param="type")


# ---------------------------------------------------------------------------------------------------- writing


def _dump_fields(value: Any) -> dict[str, Any]:
    result = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if field.default is MISSING or item != field.default:
            result[field.name] = _dump_value(item)
    return result


def _dump_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple | list):
        return [_dump_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _dump_value(item) for key, item in value.items()}
    if is_dataclass(value):
        return _dump_fields(value)
    raise TypeError(f"{type(value).__name__} does not travel over the socket.")


# ---------------------------------------------------------------------------------------------------- reading
# A reader for each type hint, made once.


def _wrong(path: str, what: str) -> BadRequest:
    return BadRequest(f"{path} must be {what}.", param=path)


def _read_dataclass(cls: type[Any]) -> Read:
    if cls not in _READERS:
        _READERS[cls] = _make_dataclass_reader(cls)
    return _READERS[cls]


def _make_dataclass_reader(cls: type[Any]) -> Read:
    # Without the class's own names, where the field `bytes` would hide the type.
    hints = get_type_hints(cls, localns={})
    readers = {field.name: _reader(hints[field.name]) for field in fields(cls)}
    required = [field.name for field in fields(cls) if _required(field)]

    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, "an object")
        if not value.keys() <= readers.keys():
            raise BadRequest(f"{path} has a field that this version doesn't know.", param=path)
        for name in required:
            if name not in value:
                raise BadRequest(f"{path}.{name} is required.", param=f"{path}.{name}")
        return cls(**{name: readers[name](item, f"{path}.{name}") for name, item in value.items()})

    return read


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _reader(hint: Any) -> Read:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value, path: value
    if hint is bytes:
        return _read_bytes
    if hint is float:
        return _read_float
    if hint in (str, int, bool):
        return _read_exactly(hint)
    if origin is Literal:
        return _read_literal(arguments)
    if origin in (Union, types.UnionType):
        return _read_union([_reader(argument) for argument in arguments if argument is not type(None)], hint)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _read_tuple(_reader(arguments[0]))
    if origin is Mapping:
        return _read_mapping(_reader(arguments[1]), by_number=arguments[0] is int)
    if isinstance(hint, type) and is_dataclass(hint):
        return _read_dataclass(hint)
    raise TypeError(f"No way to read {hint!r} from the socket.")


def _read_exactly(cls: type[Any]) -> Read:
    def read(value: Any, path: str) -> Any:
        # Not isinstance: true is no integer.
        if type(value) is not cls:
            raise _wrong(path, f"of type {cls.__name__}")
        return value

    return read


def _read_float(value: Any, path: str) -> float:
    if type(value) is not float and type(value) is not int:
        raise _wrong(path, "a number")
    return float(value)


def _read_bytes(value: Any, path: str) -> bytes:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise _wrong(path, "base64")


def _read_literal(allowed: tuple[Any, ...]) -> Read:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in allowed:
            raise _wrong(path, f"one of {', '.join(allowed)}")
        return value

    return read


def _read_union(readers: list[Read], hint: Any) -> Read:
    optional = type(None) in get_args(hint)

    def read(value: Any, path: str) -> Any:
        if value is None and optional:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value, path)
            except BadRequest:
                continue
        return readers[-1](value, path)

    return read


def _read_tuple(reader: Read) -> Read:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise _wrong(path, "a list")
        return tuple(reader(item, f"{path}[{number}]") for number, item in enumerate(value))

    return read


def _read_mapping(reader: Read, *, by_number: bool) -> Read:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(path, "an object")
        try:
            return {int(key) if by_number else key: reader(item, path) for key, item in value.items()}
        except ValueError:
            raise _wrong(path, "an object with numbers as keys") from None

    return read


# ----------------------------------------------------------------------------------------------------- errors
# Constructors differ, so an error is made without one and given its attributes.

_ERROR_READERS: dict[str, Read] = {
    "message": _reader(str),
    "param": _reader(str | None),
    "code": _reader(str | None),
    "retry_after": _reader(float | None),
    "extra": _reader(Mapping[str, int | str]),
    "upstream_status": _reader(int | None),
}


def _dump_error(error: EdgeCloudError) -> dict[str, Any]:
    known = {name: getattr(error, name, None) for name in _ERROR_READERS}
    # A room's own subclass travels as the error of the house that it is.
    tag = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS)
    return {
        "type": tag,
        **{name: item for name, item in known.items() if item not in (None, {})},
    }


def _load_error(cls: type[EdgeCloudError], value: dict[str, Any], tag: str) -> EdgeCloudError:
    if not value.keys() <= _ERROR_READERS.keys() or "message" not in value:
        raise BadRequest(f"{tag} has fields that this version doesn't know.", param=tag)
    read = {name: _ERROR_READERS[name](item, f"{tag}.{name}") for name, item in value.items()}
    error = cls.__new__(cls)
    EdgeCloudError.__init__(error, **{name: item for name, item in read.items() if name != "upstream_status"})
    if isinstance(error, errors.UpstreamError):
        error.upstream_status = read.get("upstream_status")
    return error


def _tree(cls: type[EdgeCloudError]) -> list[type[EdgeCloudError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _tree(child))]


_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls for cls in get_args(Native) if not issubclass(cls, EdgeCloudError)
}
_ERRORS: dict[str, type[EdgeCloudError]] = {
    cls.__name__: cls for cls in _tree(EdgeCloudError) if cls.__module__ == errors.__name__
}
_READERS: dict[type[Any], Read] = {}
