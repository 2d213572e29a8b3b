"""What was given: by flags, by `EDGECLOUD_*` variables, by `config.toml`.

Nested keys use two underscores in the environment: `EDGECLOUD_SERVER__PORT=9000`; lists are separated by
commas or written as JSON or TOML, tables as JSON or TOML.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from edgecloud.errors import ConfigError
from edgecloud.folders import FOLDER_VARIABLES, config_path
from edgecloud.toml_file import line_of, parse, read_text

from .assignments import Assignment, Key
from .complaints import remedy, requirement, unknown, wrong
from .keys import close_to, field_of

ENV_PREFIX = "EDGECLOUD_"


def assignments_of(overrides: Mapping[str, Any], *, may_be_new: bool = False) -> list[Assignment]:
    """Everything that was given, the strongest last. A file that `EDGECLOUD_CONFIG` names must be there,
    unless it `may_be_new`: with a name misspelt, budgets and privacy rules would be gone without a word.
    """
    path = config_path()
    if os.environ.get("EDGECLOUD_CONFIG") and not may_be_new and not path.exists():
        raise ConfigError(
            f"EDGECLOUD_CONFIG names {path}, which isn't there: correct it, or make the file with "
            "`edgecloud config edit`."
        )
    text = read_text(path)
    document = parse(text, path)
    flags = [
        Assignment(tuple(key.split(".")), value, "flag", f"the flag for {key}")
        for key, value in overrides.items()
        if value is not None
    ]
    return [*flatten(document, text, path), *_environment(os.environ), *flags]


def stray_variables() -> tuple[str, ...]:
    """Variables that begin as ours do, and mean no setting nor anything like one."""
    return tuple(
        name for name, key, _ in _variables(os.environ) if field_of(key) is None and not close_to(key)
    )


def flatten(document: Mapping[str, Any], text: str, path: Path, parents: Key = ()) -> list[Assignment]:
    """Every value of a parsed file, with its line in `text`."""
    found = []
    for name, value in document.items():
        key = (*parents, name)
        if isinstance(value, dict):
            found += flatten(value, text, path, key)
        else:
            line = line_of(key, text)
            where = f"{path}, line {line}" if line else str(path)
            found.append(Assignment(key, value, "file", where, text))
    return found


def _environment(environment: Mapping[str, str]) -> Iterator[Assignment]:
    for name, key, text in _variables(environment):
        field = field_of(key)
        if field is None:
            if close_to(key):
                raise unknown(key, f"the environment variable {name}", spell=_variable)
            continue
        given = Assignment(key, text, "environment", f"the environment variable {name}")
        yield Assignment(key, from_text(field, text, given), given.source, given.where)


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Key, str]]:
    """Variables that may be settings: name, key, text."""
    for name, text in environment.items():
        if name.startswith(ENV_PREFIX) and name not in FOLDER_VARIABLES and text:
            yield name, tuple(name.removeprefix(ENV_PREFIX).lower().split("__")), text


def from_text(field: FieldInfo, text: str, given: Assignment) -> Any:
    """A value written as text, in the type that the setting has."""
    import json

    annotation: Any = field.annotation
    is_list = get_origin(annotation) is tuple
    if is_list and not text.lstrip().startswith(("[", "{")):
        return [item.strip() for item in text.split(",") if item.strip()]
    if is_list or get_origin(annotation) is dict:
        try:
            return json.loads(text)
        except ValueError:
            return _from_toml(text, given, is_list=is_list)
    try:
        return TypeAdapter(annotation).validate_strings(text)
    except ValidationError as error:
        raise wrong(given.key, requirement(error.errors()[0]["msg"]), text, [given]) from None


def _from_toml(text: str, given: Assignment, *, is_list: bool) -> Any:
    """A value as it would stand in the file, on a line of its own."""
    try:
        found = tomllib.loads(f"value = {text}")
    except ValueError:
        found = {}
    if found.keys() != {"value"}:
        form = 'a list like ["a", "b"]' if is_list else 'a table like {name = "value"}, or JSON'
        raise ConfigError(f"{'.'.join(given.key)} must be {form}{remedy(given.where)}.")
    return found["value"]


def _variable(key: str) -> str:
    return ENV_PREFIX + key.replace(".", "__").upper()
