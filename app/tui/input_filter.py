"""Drops what some terminals send by mistake before it is read as keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver, linux_inline_driver

_BROKEN_MOUSE = re.compile(r"\x1b\[<\d*;NaN;NaN[Mm]")
"""VS Code's terminal, when it does not know where the mouse is. Read as keys it is Esc and typed garbage."""


class Parser(XTermParser):
    """Textual's, without the mistakes."""

    def feed(self, data: str) -> Iterable[Any]:
        # An empty piece means the end of the input.
        kept = _BROKEN_MOUSE.sub("", data)
        return super().feed(kept) if kept or not data else ()


def install() -> None:
    """Let the drivers of this process use it. The name is looked up when a driver starts to read."""
    linux_driver.XTermParser = Parser  # type: ignore[attr-defined]
    linux_inline_driver.XTermParser = Parser  # type: ignore[attr-defined]
