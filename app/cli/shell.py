"""What commands share: their state, and output that may go to a terminal, a pipe or a file."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

import click

from ..visible import neutral

if TYPE_CHECKING:
    from edgecloud.settings import Settings

    from ...router.ledger import Ledger
    from ...router.outcomes import Outcomes
    from ..client import GatewayClient
    from ..gateway import Gateway
    from ..history import History

WIDEST = 40
"""Characters of a column of a table, the last one's aside."""

NARROWEST = 20
"""Characters that the last column has at least, where it is broken for the width of a terminal."""

RECOVER_S = 1.0
"""How long whoever reads the history waits to put right what is in it."""

OpenGateway = Callable[["Settings"], Awaitable["Gateway | GatewayClient"]]


async def open_gateway_quietly(settings: Settings) -> Gateway | GatewayClient:
    """A gateway whose native libraries write to the log file instead of the user's terminal."""
    from ..logs import redirect_native_output
    from ..open import open_gateway

    redirect_native_output()
    return await open_gateway(settings)


@dataclass
class State:
    """What the group's flags say. Tests put a scripted gateway in `open_gateway`."""

    offline: bool = False
    debug: bool = False
    quiet: bool = False
    open_gateway: OpenGateway = open_gateway_quietly
    _warned_of: set[str] = field(default_factory=set)

    def settings(self, *, may_be_new: bool = False, **flags: Any) -> Settings:
        """The settings under the flags of this run, by dotted key with `__` for the dot. The file
        `may_be_new` to commands that make it.
        """
        from edgecloud.config.loading import load
        from edgecloud.config.sources import stray_variables

        overrides = {key.replace("__", "."): value for key, value in flags.items()}
        settings = load({"offline": True if self.offline else None, **overrides}, may_be_new=may_be_new)
        for name in stray_variables():
            if name not in self._warned_of and not self.quiet:
                self._warned_of.add(name)
                warn(f"{name} is no setting of edgecloud's; `edgecloud config show` lists them all.")
        return settings

    def ledger(self) -> Ledger:
        """What was asked of whom and what it cost; where it can't be written, what writes to it raises."""
        from edgecloud.folders import data_dir

        from ...router.ledger import Ledger

        self.settings()  # what is wrong with them is told by every command
        return Ledger(data_dir() / "edgecloud.db", for_reading=True)

    def outcomes(self, *, for_reading: bool = False) -> Outcomes:
        """What the user thought of answers."""
        from ..databases import open_outcomes

        return open_outcomes(self.settings(), for_reading=for_reading)

    def history(self, *, for_reading: bool = True) -> History:
        """The user's history, with what crashed processes left put right, unless another program writes, or
        nobody can and it is `for_reading`.
        """
        from edgecloud.folders import data_dir
        from edgecloud.storage import DatabaseLocked, ReadOnly

        from ..history import History

        self.settings()  # what is wrong with them is told by every command
        history = History(data_dir() / "edgecloud.db", for_reading=for_reading)
        history.wait_at_most(RECOVER_S)
        with suppress(DatabaseLocked, ReadOnly):
            history.recover()
        history.wait_at_most(None)
        return history


def fill_closed_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr the null device in their place.

    Else the next file opened gets that number, and what is printed is written into it: a database, say. What
    is printed to a stdout that was closed is lost, so that writing fails, as it does where a disk is full.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDONLY if descriptor == 1 else os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


class Whole(click.IntRange):
    """A whole number in a range; click says of anything else that it is no "integer range"."""

    name = "whole number"


class Decimal(click.FloatRange):
    """A number in a range."""

    name = "number"


class ReaderGone(Exception):
    """Nobody reads our output any more. Not an `OSError`, which click would end with code 1."""


def write(stream: TextIO, text: str) -> None:
    """Write and flush; what the stream cannot encode becomes question marks. Raises `ReaderGone`."""
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def note(text: str, *, quiet: bool = False) -> None:
    """A line of talk for a person: on stderr, and only if that is a terminal."""
    if not quiet and sys.stderr.isatty():
        write(sys.stderr, neutral(text, is_terminal=True) + "\n")


def dim(text: str) -> str:
    """The text for stderr, dimmed where that can be shown."""
    styled = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = neutral(text, is_terminal=True)
    return f"\x1b[2m{text}\x1b[0m" if styled else text


def complain(message: str, exit_code: int) -> int:
    """Say on stderr, in one line, what went wrong."""
    line = " ".join(message.split())
    write(sys.stderr, neutral(f"edgecloud: {line}", is_terminal=True) + "\n")
    return exit_code


def warn(message: str) -> None:
    """Say on stderr, in one line, what does not stop the command and must be seen all the same."""
    complain(f"warning: {message}", 0)


def local_time(seconds: float) -> str:
    """A moment, in seconds since the epoch, as this machine's clock had it."""
    import time

    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def print_text(text: str) -> None:
    """A command's result on stdout, safe for a terminal, ending in a newline."""
    is_terminal = sys.stdout.isatty()
    write(sys.stdout, neutral(text.rstrip("\n"), is_terminal=is_terminal) + "\n")


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout."""
    import json

    print_text(json.dumps(value, ensure_ascii=False))


def room() -> int | None:
    """Characters that a line of stdout has room for, None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Columns, the last one as long as it likes; on a terminal it goes on below itself. A cell much longer
    than a column should be moves the rest of its own row and no other.
    """
    if not rows:
        return
    # Where a row is a line, a control character is nobody's text, in a pipe neither.
    rows = [tuple(neutral(cell, is_terminal=True) for cell in row) for row in rows]
    widths = [
        max((len(row[column]) for row in rows if len(row[column]) <= WIDEST), default=0)
        for column in range(len(rows[0]) - 1)
    ]
    lines: list[str] = []
    for row in rows:
        head = "".join(f"{cell.ljust(width)}  " for cell, width in zip(row, widths, strict=False))
        lines += _below_itself(head, row[-1], room())
    print_text("\n".join(lines))


def _below_itself(head: str, text: str, room: int | None) -> list[str]:
    """The text behind what stands before it, as lines of at most `room` characters; one line where there is
    no room to speak of.
    """
    left = None if room is None else room - len(head)
    if left is None or left < NARROWEST or len(text) <= left:
        return [(head + text).rstrip()]
    first, *more = textwrap.wrap(text, left, break_long_words=False, break_on_hyphens=False) or [""]
    return [(head + first).rstrip(), *(" " * len(head) + line for line in more)]
