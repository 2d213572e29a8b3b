"""Log lines: one a record, with the request that it belongs to, and with no key in it."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from pydantic import SecretStr

# Which request a log line belongs to; set where a request enters.
current_request_id: ContextVar[str] = ContextVar("request_id", default="")

_BEARER = re.compile(r"(?i)\b(bearer\s+|x-api-key['\"]?\s*[:=]\s*b?['\"]?)[^\s'\",)]+")
_KEY_LIKE = re.compile(r"\b(?:sk|pk|hf|gsk|xai)[-_][A-Za-z0-9_-]{16,}")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@+%,*\[\]-]+")


class Redactor:
    """Takes keys out of text: those it was told, and what looks like one."""

    def __init__(self, secrets: Iterable[SecretStr] = ()) -> None:
        values = {secret.get_secret_value() for secret in secrets}
        # Longest first: one key may begin another.
        self._secrets = sorted((value for value in values if value), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, "[redacted]")
        text = _BEARER.sub(r"\1[redacted]", text)
        return _KEY_LIKE.sub("[redacted]", text)


class LineFormatter(logging.Formatter):
    """One line per record: `key=value` pairs, or a JSON object. Tracebacks follow in the same record,
    redacted as all of it.
    """

    def __init__(self, redact: Redactor, *, as_json: bool = False) -> None:
        super().__init__()
        self._redact = redact
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = current_request_id.get()
        if request_id:
            fields["request_id"] = request_id
        extra: Mapping[str, object] = getattr(record, "fields", {})
        fields.update(extra)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if self._as_json:
            return self._redact(json.dumps(fields, ensure_ascii=False, default=str))
        trace = fields.pop("exception", None)
        line = " ".join(f"{key}={_logfmt(value)}" for key, value in fields.items())
        return self._redact(f"{line}\n{trace}" if trace else line)


def _logfmt(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def configure_logging(
    level: str = "info",
    *,
    secrets: Iterable[SecretStr] = (),
    as_json: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Send every log record of this process to `stream` (stderr), one redacted line each. For `serve` and
    servers like it.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(Redactor(secrets), as_json=as_json))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    # Ours says more, with a request id.
    logging.getLogger("uvicorn.access").disabled = True
    # Their debug and info lines hold URLs and headers.
    for name in ("httpx", "httpcore", "aiohttp", "asyncio", "urllib3", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)
