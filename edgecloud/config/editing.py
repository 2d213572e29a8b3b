"""Changing `config.toml`: comments and layout are kept, and nothing is written unless the whole is valid."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from edgecloud.errors import ConfigError
from edgecloud.folders import config_path
from edgecloud.settings import PoolEntry, Settings
from edgecloud.toml_file import changed, read_text, replace_text

from .assignments import TYPED, Assignment
from .complaints import explain, unknown
from .keys import field_of
from .loading import build
from .sources import flatten, from_text


def set_value(key: str, value: object, *, check: Callable[[Settings], None] | None = None) -> None:
    """Write one setting to `config.toml`, keeping comments and layout; text is read as in the environment.

    Nothing is written unless the whole file is then valid and `check`, given the file's settings as they
    would be, raises nothing. Raises `ConfigError`, and `StorageError` if it can't be written.
    """
    path = config_path().resolve()  # through a link to somebody's dotfiles
    parts = tuple(key.split("."))
    field = field_of(parts)
    if field is None and parts[0] == "pool" and len(parts) > 1:
        raise ConfigError(
            "Pools are changed with `edgecloud pool add` and `pool rm`, or `edgecloud config edit`."
        )
    if field is None:
        raise unknown(parts, "`config set`")
    if isinstance(value, str):
        value = from_text(field, value, Assignment(parts, value, "flag", TYPED))

    def change(document: Any) -> None:
        table = document
        for part in parts[:-1]:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[parts[-1]] = value

    text = changed(read_text(path), change, path)
    # What was typed stands on no line of the file yet.
    assignments = [
        replace(given, where=TYPED, text="") if given.key[: len(parts)] == parts else given
        for given in flatten(tomllib.loads(text), text, path)
    ]
    settings = build(assignments)
    if check is not None:
        check(settings)
    replace_text(path, text)


def pool_entry(fields: Mapping[str, Any]) -> PoolEntry:
    """An entry of `[[pool]]` as it was typed, before it is anywhere. Raises `ConfigError`."""
    try:
        return PoolEntry.model_validate(fields)
    except ValidationError as error:
        raise explain(error, [Assignment((), fields, "flag", TYPED)]) from error


def unset_value(key: str) -> None:
    """Take one setting out of `config.toml`, so that its default holds again, or a section with all it says.

    Nothing is written unless the whole file is then valid. Raises `ConfigError`, also if it isn't there.
    """
    parts = tuple(key.split("."))

    def change(document: Any) -> None:
        tables = [document]
        for part in parts[:-1]:
            tables.append(tables[-1].get(part) if isinstance(tables[-1], dict) else None)
        if not isinstance(tables[-1], dict) or parts[-1] not in tables[-1]:
            raise ConfigError(
                f"{key[:80]!r} isn't set in {config_path()}; `edgecloud config show` tells where it is from."
            )
        del tables[-1][parts[-1]]
        # A section that says nothing more goes too.
        for parent, name in zip(reversed(tables[:-1]), reversed(parts[:-1]), strict=True):
            if parent[name]:
                break
            del parent[name]

    rewrite(change)


def rewrite(change: Callable[[Any], None]) -> None:
    """Change `config.toml` by a function of its document (see `changed`), keeping comments and layout.

    Nothing is written unless the whole file is then valid. Raises `ConfigError`, and what `change` raises.
    """
    path = config_path().resolve()
    text = changed(read_text(path), change, path)
    build(flatten(tomllib.loads(text), text, path))
    replace_text(path, text)
