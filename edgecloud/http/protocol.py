"""uvicorn's HTTP protocol with limits on the head of a request, which it lacks: size, and time to arrive."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from edgecloud.errors import BadRequest
from edgecloud.http.asgi import json_bytes
from edgecloud.wire.errors import openai_error

HEAD_LIMIT = 2**16
HEAD_TIMEOUT_S = 30.0


class Protocol(HttpToolsProtocol):
    """One connection. A head over `HEAD_LIMIT` bytes, or not complete within `HEAD_TIMEOUT_S` seconds, ends
    it.
    """

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT and not self.transport.is_closing():
                self.send_400_response(f"The head of the request is larger than {HEAD_LIMIT} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_arrived()
        super().on_headers_complete()
        cycle = self.cycle
        self.scope["edgecloud.close"] = lambda: setattr(cycle, "keep_alive", False)  # type: ignore[typeddict-unknown-key]

    def send_400_response(self, msg: str) -> None:
        body = json_bytes(openai_error(BadRequest(msg)))
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: " + str(len(body)).encode() + b"\r\n\r\n"
        )
        self.transport.write(head + body)
        self.transport.close()

    def _await_head(self) -> None:
        self._head_arrived()
        self._in_head = True
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_late)

    def _head_arrived(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
