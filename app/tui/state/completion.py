"""What Tab makes of a file's name that is half typed after an `@`."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from edgecloud.folders import expanded

_OPEN = re.compile(r'(?<!\S)@(?:"([^"]*)|([^\s"]*))$')


class Completion(NamedTuple):
    """`text` is to stand from column `start` on. `names` are what it may become where that is not clear."""

    start: int
    text: str
    names: tuple[str, ...]


def complete(before: str) -> Completion | None:
    """Go on with the mention that ends a line up to its cursor, as far as the names of the files agree that
    begin so; None if the cursor is in no mention.
    """
    match = _OPEN.search(before)
    if match is None:
        return None
    typed = match[2] if match[1] is None else match[1]
    folder, slash, beginning = typed.rpartition("/")
    names = _names(folder + slash, beginning)
    if not names:
        return Completion(match.start(), match[0], ())
    whole = folder + slash + os.path.commonprefix(names)  # noqa: RUF071  (of names in one folder)
    is_whole = len(names) == 1 and not whole.endswith("/")
    is_quoted = match[1] is not None or " " in whole
    mention = f'@"{whole}' if is_quoted else f"@{whole}"
    if is_whole:
        mention += '" ' if is_quoted else " "
    return Completion(match.start(), mention, tuple(names) if len(names) > 1 else ())


def _names(folder: str, beginning: str) -> list[str]:
    """What is in a folder and begins so, folders with a slash; what is hidden only if it is asked for."""
    try:
        with os.scandir(expanded(folder)) as entries:
            return sorted(
                f"{entry.name}/" if entry.is_dir() else entry.name
                for entry in entries
                if entry.name.startswith(beginning)
                and (beginning.startswith(".") or not entry.name.startswith("."))
                and entry.name.isprintable()
            )
    except (OSError, ValueError):  # no such folder, no name at all
        return []
