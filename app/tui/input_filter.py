"""Mends what terminals send before it is read as keys: mistakes are dropped, pastes without marks marked."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from textual._xterm_parser import XTermParser
from textual.drivers import linux_driver, linux_inline_driver

from .state.bursts import Bursts, shortest_paste

_BROKEN_MOUSE = re.compile(r"\x1b\[<\d*;NaN;NaN[Mm]")
"""VS Code's terminal, when it does not know where the mouse is. Read as keys it is Esc and typed garbage."""


class Parser(XTermParser):
    """Textual's, of input as it was meant. `letters_act` says whether nothing that takes text is focused."""

    letters_act: ClassVar[Callable[[], bool]] = staticmethod(lambda: False)

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._bursts = Bursts(shortest_paste(os.environ))

    def feed(self, data: str) -> Iterable[Any]:
        if not data:  # the end of the input
            return super().feed(data)
        kept = _BROKEN_MOUSE.sub("", data)
        meant = self._bursts.take(kept, time.monotonic(), letters_act=Parser.letters_act()) if kept else ""
        return super().feed(meant) if meant else ()

    def tick(self) -> Iterable[Any]:
        yield from super().tick()
        if meant := self._bursts.tick(time.monotonic()):
            yield from super().feed(meant)


def install(letters_act: Callable[[], bool]) -> None:
    """Let the drivers of this process use it, which ask in their own thread whether letters act.

    The name is looked up when a driver starts to read.
    """
    Parser.letters_act = staticmethod(letters_act)
    linux_driver.XTermParser = Parser  # type: ignore[attr-defined]
    linux_inline_driver.XTermParser = Parser  # type: ignore[attr-defined]
