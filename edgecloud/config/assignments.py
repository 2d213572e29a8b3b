"""One value that somebody gave, and where: what every complaint about it points to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgecloud.folders import config_path
from edgecloud.toml_file import line_of

Key = tuple[str, ...]
TYPED = "what you typed"
"""Where a value is that has no place yet."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value that somebody gave, and where: a line of the file (whose text it has), a variable, a flag."""

    key: Key
    value: Any
    source: Literal["file", "environment", "flag"]
    where: str
    text: str = ""

    def where_is(self, key: Key) -> str:
        """The place of something in the value: its own line, where the file has one for it."""
        for length in range(len(key), len(self.key), -1):
            if line := line_of(key[:length], self.text):
                return f"{config_path()}, line {line}"
        return self.where


def place_of(key: Key, assignments: Sequence[Assignment]) -> str:
    """The place of the last assignment that gave the key, something in it, or something that holds it."""
    for assignment in reversed(assignments):
        length = min(len(key), len(assignment.key))
        if assignment.key[:length] == key[:length]:
            return assignment.where_is(key)
    return str(config_path())
