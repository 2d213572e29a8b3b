"""Judges nobody here wrote: the SDKs' own types, and the SDKs themselves talking to a canned answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

Model = TypeVar("Model", bound=BaseModel)

# What local servers add to OpenAI's answers.
EXTENSIONS = {"reasoning_content"}


def judge(model: type[Model], body: dict[str, Any], *, extensions: Iterable[str] = EXTENSIONS) -> Model:
    """The body as the SDK's type: strict, through JSON, and with no key that the type doesn't have."""
    parsed: Model = judge_union(model, body, extensions=extensions)
    return parsed


def judge_union(form: Any, body: dict[str, Any], *, extensions: Iterable[str] = ()) -> Any:
    """The same for a union of types, as stream events are."""
    parsed = _adapter(form).validate_json(json.dumps(body, allow_nan=False), strict=True)
    unknown = set(_unknown(parsed)) - set(extensions)
    assert not unknown, f"{type(parsed).__name__} has no {unknown}"
    return parsed


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def _unknown(value: Any) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from value.model_extra or {}
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from _unknown(item)


def sse(events: Iterable[dict[str, Any]], *, named: bool = False, done: bool = True) -> bytes:
    """Events as a door would frame them."""
    frames = [
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events
    ]
    return "".join([*frames, "data: [DONE]\n\n" if done else ""]).encode()


@contextmanager
def canned(answer: bytes) -> Iterator[str]:
    """A server that answers every POST with these bytes, as an event stream if they look like one."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            is_json = answer.startswith(b"{")
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if is_json else "text/event-stream")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
