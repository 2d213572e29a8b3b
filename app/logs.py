"""Where talk goes that no user asked for: log records, tracebacks, what native libraries write to fd 2."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from edgecloud.config.loading import load
from edgecloud.folders import data_dir

if TYPE_CHECKING:
    from pydantic import SecretStr

MAX_BYTES = 2**20


def log_path() -> Path:
    return data_dir() / "logs" / "edgecloud.log"


def open_log() -> int | None:
    """A descriptor that appends to the log file, which starts over when it is long; None if it cannot be."""
    path = log_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        return None


def redirect_native_output() -> None:
    """Send fd 2 and log records to the log file; `sys.stderr` stays what the user sees.

    llama.cpp and its kind write to fd 2, whatever Python does. A second call changes nothing.
    """
    if any(isinstance(handler, _RedactedHandler) for handler in logging.getLogger().handlers):
        return
    log = open_log()
    seen = os.dup(2)
    os.dup2(log if log is not None else os.open(os.devnull, os.O_WRONLY), 2)
    if log is not None:
        os.close(log)
    sys.stderr = os.fdopen(seen, "w", buffering=1, encoding=sys.stderr.encoding, errors="backslashreplace")
    logging.getLogger().handlers[:] = [_RedactedHandler(logging.WARNING)]


def log_bug(error: Exception) -> Path | None:
    """Append the traceback to the log, without secrets; where it is, or None if it could not be written."""
    log = open_log()
    if log is None:
        return None
    try:
        with open(log, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_redacted("".join(traceback.format_exception(error))) + "\n")
    except OSError:
        return None
    return log_path()


class _RedactedHandler(logging.Handler):
    """Writes to the log file that fd 2 has become; imports what it needs when there is something to say."""

    def emit(self, record: logging.LogRecord) -> None:
        from edgecloud.log_lines import LineFormatter, Redactor

        line = LineFormatter(Redactor(_secrets())).format(record)
        # A full disk must not end what only wanted to speak of it.
        with contextlib.suppress(OSError):
            os.write(2, (line + "\n").encode("utf-8", "backslashreplace"))


def _redacted(text: str) -> str:
    from edgecloud.log_lines import Redactor

    return Redactor(_secrets())(text)


def _secrets() -> list[SecretStr]:
    try:
        settings = load()
    except Exception:
        return []
    keys = (*settings.server.all_keys, *(entry.api_key for entry in settings.pool))
    return [key for key in keys if key is not None]
