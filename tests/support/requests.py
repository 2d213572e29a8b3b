"""Bodies and clients that tests send."""

from __future__ import annotations

import json
from typing import Any

import httpx


def chat(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat body."""
    return {"messages": [{"role": "user", "content": text}], **fields}


def client(url: str, **options: Any) -> httpx.Client:
    """A client without retries or proxies."""
    return httpx.Client(base_url=url, timeout=20, trust_env=False, **options)


def frames(text: str) -> list[Any]:
    """The events of an OpenAI stream, comments left out; the last is the string `[DONE]`."""
    events = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(event.startswith("data: ") for event in events)
    return [
        event[6:] if event == "data: [DONE]" else json.loads(event.removeprefix("data: ")) for event in events
    ]


def named_frames(text: str) -> list[dict[str, Any]]:
    """The events of an Anthropic or Responses stream; each one's name must be its type."""
    events = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
    return events


def post_bytes(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """A raw HTTP/1.1 request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content
