"""A TOML file that people write too: reading it, finding a line, changing it, replacing it at once."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgecloud.errors import ConfigError, StorageError


def read_text(path: Path) -> str:
    """The file's text, empty where there is no file; the mark that some editors put at the start, and how
    they end lines, are not part of it. Raises `ConfigError`.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def replace_text(path: Path, text: str) -> None:
    """Put a new text in place of the file, 0600, so that no reader and no crash sees half of it. Lines end
    as they did. Raises `StorageError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        newline = "\r\n" if path.exists() and b"\r\n" in path.read_bytes() else "\n"
        with open(descriptor, "w", encoding="utf-8", newline=newline) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise StorageError(f"{path} cannot be written: {error.strerror}.") from error


def parse(text: str, path: Path) -> dict[str, Any]:
    """What the file says. Raises `ConfigError`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def changed(text: str, change: Callable[[Any], None], path: Path) -> str:
    """The text after a change, comments and layout kept; `change` is given the document as nested mappings
    and lists, and gives plain values.

    It is made twice, to the plain values and to the text, and what the text then says must be the former:
    an edit in place has more ways to go wrong than TOML has ways to be written. Raises `ConfigError`, and
    what `change` raises.
    """
    import tomlkit

    wanted = parse(text, path)
    change(wanted)
    # A line that the file's end completes is not complete when something comes after it.
    document = tomlkit.parse(text if text.endswith("\n") or not text else text + "\n")
    try:
        change(document)
        edited = tomlkit.dumps(document)
        is_right = tomllib.loads(edited) == wanted
    except (tomlkit.exceptions.TOMLKitError, tomllib.TOMLDecodeError, AttributeError, TypeError):
        is_right = False
    if not is_right:
        raise ConfigError(
            f"{path} is written in a way that can't be changed for you: `edgecloud config edit` opens it."
        )
    return edited


def line_of(key: tuple[str, ...], text: str) -> int | None:
    """The line that assigns a key, as TOML is usually written; None where it is written otherwise. The tables
    of a list are counted: ("pool", "1", "name") is in the second `[[pool]]`.
    """
    table: tuple[str, ...] = ()
    counts: Counter[tuple[str, ...]] = Counter()
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*(\[+)\s*([\w.-]+)\s*\]", line):
            name = tuple(header[2].split("."))
            table = name
            if header[1] == "[[":
                table = (*name, str(counts[name]))
                counts[name] += 1
            if key in (name, table):
                return number
        elif (found := re.match(r"\s*\"?([\w.-]+)\"?\s*=", line)) and (*table, *found[1].split(".")) == key:
            return number
    return None
