"""Copying text out of a terminal: a tool of the desktop if there is one, else the terminal itself.

A terminal does not say whether it took the text, so neither do we claim it.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

_TOOLS = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
    ("", ("pbcopy",)),
)
_PATIENCE_S = 2.0

MAX_OSC52 = 100_000
"""Bytes of base64 that terminals take; longer ones are dropped whole or in part, without a word."""


def copy(text: str, write: Callable[[str], None], environment: Mapping[str, str] = os.environ) -> str:
    """Copy the text; returns the sentence that says what was done. Never raises.

    `write` sends an escape sequence to the terminal.
    """
    # Over ssh a desktop's tool would copy on the wrong machine.
    if not environment.get("SSH_TTY"):
        for variable, command in _TOOLS:
            if (not variable or environment.get(variable)) and _give(command, text):
                return f"Copied {_size(text)}."
    sequence = osc52(text, in_tmux=bool(environment.get("TMUX")))
    if len(sequence) > MAX_OSC52:
        return (
            f"{_size(text)} are more than a terminal takes, and no clipboard tool was found "
            "(wl-copy, xclip, xsel): use /export."
        )
    write(sequence)
    return f"Gave {_size(text)} to the terminal to copy; if it did not, select with Shift and the mouse."


def osc52(text: str, *, in_tmux: bool) -> str:
    """The sequence that asks a terminal to copy; tmux passes on only what is wrapped for it."""
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode('utf-8', 'replace')).decode()}\a"
    if in_tmux:
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return sequence


def _give(command: tuple[str, ...], text: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _size(text: str) -> str:
    num_lines = text.count("\n") + 1
    return f"{num_lines:,} lines" if num_lines > 1 else f"{len(text):,} characters"
