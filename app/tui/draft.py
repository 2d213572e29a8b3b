"""What was typed into a new chat and not sent, kept until the next start. Chats that exist keep their own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class DraftFile:
    """A file for nobody else to read; there is none while nothing waits. Never raises: it is a courtesy."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self, text: str) -> None:
        """Keep this; nothing kept is no file."""
        with contextlib.suppress(OSError):
            if not text.strip():
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)

    def take(self) -> str:
        """What was kept, once."""
        try:
            text = self._path.read_text(encoding="utf-8", errors="replace")
            self._path.unlink()
        except OSError:
            return ""
        return text
