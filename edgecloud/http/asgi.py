"""The few ASGI helpers that all of `http/` shares."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = [
    "ASGIApp",
    "Headers",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "close_behind",
    "header",
    "json_bytes",
    "reply",
]

Headers = Iterable[tuple[bytes, bytes]]


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of that lower-case name, or None."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return None


def json_bytes(value: Any) -> bytes:
    """Compact UTF-8 JSON of plain values; text that UTF-8 cannot carry (a lone surrogate) becomes `?`."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


async def reply(
    send: Send,
    status: int,
    body: bytes,
    headers: Headers = (),
    *,
    content_type: bytes = b"application/json",
    more: bool = False,
) -> None:
    """Send one whole response. `more` leaves it open at the ASGI level although the body is complete."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": more})


def close_behind(scope: Scope) -> None:
    """Have the connection closed once this response is complete; only our own protocol can do it so late."""
    close = scope.get("edgecloud.close")
    if close is not None:
        close()
