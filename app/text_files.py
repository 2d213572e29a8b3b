"""Text that people name as files or pipe in: bounded, UTF-8 or UTF-16, and told what is wrong with it."""

from __future__ import annotations

import codecs
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
