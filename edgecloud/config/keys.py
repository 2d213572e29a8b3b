"""Which settings there are, and which of them a misspelt one most likely means."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from edgecloud.settings import Section, Settings

from .assignments import Key


def leaves_of(section: type[BaseModel], parents: Key = ()) -> Iterator[tuple[Key, FieldInfo]]:
    """Every setting of the model with its key, in order."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from leaves_of(field.annotation, (*parents, name))
        else:
            yield (*parents, name), field


def field_of(key: Key) -> FieldInfo | None:
    """The setting with this key; an entry of a table of names (`aliases.gpt-4o`) is one too."""
    leaves = dict(leaves_of(Settings))
    table = leaves.get(key[:-1])
    if table is not None and get_origin(table.annotation) is dict:
        return FieldInfo(annotation=get_args(table.annotation)[1])
    return leaves.get(key)


def close_to(key: Key) -> str | None:
    """The setting that an unknown key most likely means."""
    name, known = ".".join(key), [".".join(leaf) for leaf in _siblings(key)]
    close = [
        *(leaf for leaf in known if leaf.split(".")[-1] == key[-1]),
        *(leaf for leaf in known if leaf.startswith(f"{name}.")),
        *difflib.get_close_matches(name, known, n=1),
    ]
    return close[0] if close else None


def _siblings(key: Key) -> list[Key]:
    """The keys that an unknown one may have meant: those of its own entry in a list, else all."""
    leaves = dict(leaves_of(Settings))
    entries = leaves.get(key[:1])
    if entries is not None and len(key) == 3 and get_origin(entries.annotation) is tuple:
        return [(*key[:2], name) for name in get_args(entries.annotation)[0].model_fields]
    return list(leaves)
