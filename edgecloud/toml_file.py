"""A TOML file that people write too: reading it, finding a line, replacing it at once."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from edgecloud.errors import ConfigError


def read_text(path: Path) -> str:
    """The file's text, empty where there is no file. Raises `ConfigError`."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def replace_text(path: Path, text: str) -> None:
    """Put a new text in place of the file, 0600, so that no reader and no crash sees half of it.

    Raises `ConfigError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


def line_of(key: tuple[str, ...], text: str) -> int | None:
    """The line that assigns a key, as TOML is usually written; None where it is written otherwise."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([\w.-]+)\s*\]", line):
            table = tuple(header[1].split("."))
            if table == key:
                return number
        elif (name := re.match(r"\s*\"?([\w.-]+)\"?\s*=", line)) and (*table, *name[1].split(".")) == key:
            return number
    return None
