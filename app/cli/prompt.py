"""The prompt of `ask`: arguments, files and what is piped in, joined into one text."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from edgecloud.errors import BadRequest

from ..text_files import decoded, read_bounded, read_text
from .shell import note

GRACE_S = 1.0
"""Seconds that a prompt which is there already waits for the first byte of a pipe. A program that runs us may
leave one open that it never writes to; `-` waits for as long as it takes."""


def gather_prompt(
    arguments: Sequence[str], files: Sequence[str], *, quiet: bool = False, optional: bool = False
) -> str:
    """One prompt: the arguments, each file under its name, and what is piped in; with `optional` it may be
    nothing at all.

    `-` among arguments or files stands for the piped text where it stands. Raises `BadRequest`, also for a
    file or a named pipe with nothing in it: asking about nothing is never what was meant.
    """
    named = "-" in arguments or "-" in files
    piped = _read_stdin(named=named, needed=named or not (arguments or files or optional), quiet=quiet)
    if named and not piped.strip():
        raise BadRequest("Nothing came through the pipe that - stands for.")
    parts: list[str] = []
    words: list[str] = []
    for argument in arguments:
        if argument == "-":
            parts += [" ".join(words), piped]
            words = []
        else:
            words.append(_utf8(argument))
    parts.append(" ".join(words))
    parts += [piped if name == "-" else _file(name, quiet=quiet) for name in files]
    if not named:
        parts.append(piped)
    prompt = "\n\n".join(part.strip("\n") for part in parts if part.strip())
    if not prompt and not optional:
        raise BadRequest("There is no prompt: give one as an argument, with -f FILE or through a pipe.")
    return prompt


def _file(name: str, *, quiet: bool) -> str:
    sentence = f"edgecloud: {name} is a pipe, and is waited for until whoever writes to it is done."
    silence = threading.Timer(GRACE_S, note, (sentence,), {"quiet": quiet})
    silence.daemon = True
    if Path(name).is_fifo():
        silence.start()
    try:
        text = read_text(name)
    finally:
        silence.cancel()
    if not text.strip():
        raise BadRequest(f"{name} is empty: leave it out.")
    return f"--- {Path(name).name} ---\n{text}"


def _read_stdin(*, named: bool, needed: bool, quiet: bool) -> str:
    """What is piped in. A terminal is only read if `-` asks for it, a silent pipe only if it is needed."""
    stream = sys.stdin
    try:
        descriptor = stream.fileno()
        os.fstat(descriptor)
    except (AttributeError, OSError, ValueError):  # started with stdin closed
        return ""
    if stream.isatty() and not named:
        return ""
    if not needed and not select.select([descriptor], [], [], GRACE_S)[0]:
        note(
            f"edgecloud: nothing was piped in for {GRACE_S:g} s, so only the prompt is sent; use - to wait.",
            quiet=quiet,
        )
        return ""
    return decoded(read_bounded(stream.buffer, "The piped input"), "The piped input")


def _utf8(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError as error:  # bytes that were not UTF-8 arrive as lone surrogates
        raise BadRequest("The prompt is not UTF-8 text.") from error
    return argument
