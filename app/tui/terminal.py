"""The terminal as it was, whatever ends us: what we switch on is known here, and how to switch it off.

Textual leaves the terminal well when it ends well. It draws on what `sys.__stderr__` is, where native
libraries write too, knows nothing of SIGTERM and SIGHUP, and can hang; this is for those cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from ..logs import redirect_native_output

PATIENCE_S = 5.0
"""Seconds that an orderly end may take after a signal."""

RESET = (
    "\x1b[?2026l"  # draw at once again
    "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # no mouse reports
    "\x1b[?2004l\x1b[?1004l\x1b[?2048l"  # no marks around pastes, no focus nor size reports
    "\x1b[<u"  # keys as they were
    "\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"  # wrap, the screen from before, the cursor
)
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def is_there() -> bool:
    """Whether somebody can see and type: stdin, and stdout or stderr, are a terminal."""
    return _is_terminal(0) and (_is_terminal(1) or _is_terminal(2))


def in_browser() -> bool:
    """Whether this process draws for a browser (`edgecloud chat --web`), so that it needs no terminal."""
    return os.environ.get("TEXTUAL_DRIVER", "").endswith(":WebDriver")


class Terminal:
    """Use as a context: what is drawn goes to the terminal, whatever else writes to fd 2 to the log."""

    def __init__(self) -> None:
        self._attributes: list[Any] | None = None
        self._before = sys.__stderr__
        self._drawn: Any = None
        self._is_drawn_on = False

    def __enter__(self) -> Terminal:
        with contextlib.suppress(termios.error):
            self._attributes = termios.tcgetattr(0)
        # Before fd 2 becomes the log. `2>errors` must not draw into a file.
        self._drawn = os.fdopen(os.dup(1 if _is_terminal(1) else 2), "w", encoding="utf-8", errors="replace")
        redirect_native_output()
        sys.__stderr__ = self._drawn  # type: ignore[misc]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._is_drawn_on:
            self.restore()
        sys.__stderr__ = self._before  # type: ignore[misc]
        with contextlib.suppress(OSError, ValueError):
            self._drawn.close()

    def restore(self) -> None:
        """Put everything back by force. Never raises: there may be no terminal any more."""
        with contextlib.suppress(OSError, ValueError):
            os.write(self._drawn.fileno(), RESET.encode())
        with contextlib.suppress(termios.error):
            if self._attributes is not None:
                termios.tcsetattr(0, termios.TCSANOW, self._attributes)

    @contextlib.contextmanager
    def signals(self, leave: Callable[[int], None]) -> Iterator[None]:
        """The first signal calls `leave` with the exit code; a second one, or lost patience, is final."""
        self._is_drawn_on = True
        loop = asyncio.get_running_loop()
        received: list[int] = []

        def receive(number: int) -> None:
            if received:
                self._end(128 + number)
            received.append(number)
            watchdog = threading.Timer(PATIENCE_S, self._end, [128 + number])
            watchdog.daemon = True
            watchdog.start()
            leave(128 + number)

        for number in SIGNALS:
            loop.add_signal_handler(number, receive, number)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _end(self, code: int) -> None:
        self.restore()
        os._exit(code)


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
