"""What an error of another OpenAI-compatible server means to our caller.

Their texts are quoted only in part, and never on a 401 or 403, where some of them repeat the key.
"""

from __future__ import annotations

from typing import Any

from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    NotSupported,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
    UpstreamError,
)
from edgecloud.shorten import one_line

MAX_QUOTE = 300
_CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size_error")
_CONTEXT_WORDS = ("context length", "context size", "context window", "maximum context", "max_model_len")


def decode_error(status: int, body: Any, *, retry_after: float | None = None) -> EdgeCloudError:
    """What an upstream's `status` with a decoded JSON `body` (or text, or None) means to our caller.

    What is wrong with the request stays the caller's fault; what is wrong with our key, our money or the
    model's name there is the upstream's, so that the router can go elsewhere.
    """
    message = quote(body)
    if status == 504 and is_deadline(body):
        return deadline_error()
    if status in (400, 413, 422) and _is_context(body, message):
        return _context_error(body, message)
    said = f": {message}" if message else ""
    said += "" if said.endswith((".", "!", "?", "…")) else "."
    if status in (400, 422):
        error = body.get("error") if isinstance(body, dict) else None
        param = error.get("param") if isinstance(error, dict) else None
        return BadRequest(
            f"The upstream refused the request{said}", param=param[:100] if isinstance(param, str) else None
        )
    if status == 413:
        return PayloadTooLarge("The request is too large for the upstream.")
    if status == 429:
        return Overloaded(f"The upstream has too much to do{said}", retry_after=retry_after)
    if status == 501:
        return NotSupported(f"The upstream can't do that{said}")
    if status == 503:
        return Unavailable(f"The upstream is not ready{said}", retry_after=retry_after)
    if status in (401, 403):
        return UpstreamError(
            f"The upstream refused our key ({status}): check its api_key.", upstream_status=status
        )
    return UpstreamError(
        f"The upstream failed with status {status}{said}", upstream_status=status, retry_after=retry_after
    )


def quote(body: Any) -> str:
    """The message in an error body of any known shape, on one line and cut short; "" for none."""
    for _ in range(3):
        if not isinstance(body, dict):
            break
        body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
    if not isinstance(body, str):
        return ""
    return one_line(body[: 4 * MAX_QUOTE].encode(errors="replace").decode(), MAX_QUOTE)


def is_deadline(body: Any) -> bool:
    """Whether an error says that the time we allowed is over, in the code that only servers of ours send."""
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and error.get("code") == DeadlineExceeded.default_code


def deadline_error() -> DeadlineExceeded:
    return DeadlineExceeded("The upstream's answer took longer than was allowed: allow more time.")


def _is_context(body: Any, message: str) -> bool:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and any(error.get(key) in _CONTEXT_CODES for key in ("code", "type")):
        return True
    return any(words in message.lower() for words in _CONTEXT_WORDS)


def _context_error(body: Any, message: str) -> EdgeCloudError:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
        if isinstance(prompt, int) and isinstance(context, int):
            return ContextLengthExceeded(prompt, context)
    return BadRequest(
        f"The prompt does not fit the upstream's context{': ' + message if message else '.'}",
        param="messages",
        code="context_length_exceeded",
    )
