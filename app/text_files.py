"""Text files that people name: read within bounds, UTF-8 or UTF-16, and written for nobody else to read."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import BinaryIO

from edgecloud.errors import BadRequest

MAX_BYTES = 8 * 2**20
"""More text than any context here holds."""


def read_text(name: str) -> str:
    """A text file's content. Raises `BadRequest` with a sentence for what is missing, binary or too large."""
    try:
        with open(name, "rb") as file:
            return decoded(read_bounded(file, name), name)
    except OSError as error:
        raise BadRequest(f"{name} cannot be read: {error.strerror or error}.") from error


def paths_of(name: Path | str) -> tuple[str, ...]:
    """The absolute path of a file as it was named, and that where links lead from there if it is another: a
    rule on files may mean either.
    """
    return tuple(dict.fromkeys((os.path.abspath(name), os.path.realpath(name))))


def read_bounded(file: BinaryIO, name: str) -> bytes:
    """All of a file of a reasonable size. Raises `BadRequest` for more."""
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadRequest(f"{name} is larger than {MAX_BYTES // 2**20} MiB, more than any context holds.")
    return data


def decoded(data: bytes, name: str) -> str:
    """Bytes as text with plain line ends. Raises `BadRequest` for what is not text."""
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if b"\0" in data:
            raise BadRequest(f"{name} is not text.") from error
        if error.reason == "unexpected end of data":
            raise BadRequest(f"{name} ends in the middle of a character: it was cut.") from error
        raise BadRequest(f"{name} is not UTF-8 text (byte {error.start}): convert it with iconv.") from error
    if "\0" in text:
        raise BadRequest(f"{name} is not text.")
    return text.replace("\r\n", "\n")


def write_private(path: Path | str, text: str) -> None:
    """A new file that only its owner can read. Raises `BadRequest`; never writes over a file."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            try:
                file.write(text)
                file.flush()
            except BaseException:
                os.unlink(path)  # half a file would stand in the way of the next try
                raise
    except FileExistsError as error:
        raise BadRequest(f"{path} is there already: name another file.") from error
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror or error}.") from error
