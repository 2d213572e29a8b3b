"""The outermost layer: names every request, and when it is over writes one log line and counts it. No
prompts, no keys.
"""

from __future__ import annotations

import logging
import time
from urllib.parse import quote

from edgecloud.http.asgi import ASGIApp, Message, Receive, Scope, Send
from edgecloud.http.call import Call, begin_call
from edgecloud.http.problem import speaks_anthropic
from edgecloud.metrics import Metrics
from edgecloud.spans import span

log = logging.getLogger("edgecloud.access")

# What nginx writes for a client that closed its connection before the answer.
CLIENT_CLOSED = 499


class Access:
    """Sets `x-request-id` on every answer; `metrics` counts it by route, status and the model that
    answered.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        call = begin_call(scope)
        names = [(b"x-request-id", call.request_id.encode())]
        if speaks_anthropic(scope):
            names.append((b"request-id", call.request_id.encode()))

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *names]
            else:
                call.bytes_out += len(message.get("body", b""))
            await send(message)

        self.metrics.in_flight += 1
        with span(scope["method"], scope["headers"]) as attributes:
            try:
                await self.app(scope, receive, noting)
            except BaseException:
                call.error = call.error or "failed"
                raise
            finally:
                self.metrics.in_flight -= 1
                self._note(scope, call)
                attributes |= {
                    "http.request.method": scope["method"],
                    "http.route": call.route,
                    "http.response.status_code": call.status or 500,
                    "edgecloud.request_id": call.request_id,
                    "gen_ai.response.model": call.model,
                }

    def _note(self, scope: Scope, call: Call) -> None:
        seconds = time.perf_counter() - call.started
        if call.error == "client_gone":
            call.status = CLIENT_CLOSED
        transport_s = None if call.engine_s is None else max(seconds - call.engine_s, 0.0)
        self.metrics.count_request(call.route, call.status or 500, call.model, seconds, transport_s)
        if not log.isEnabledFor(logging.INFO):
            return
        client = scope.get("client")
        fields: dict[str, object] = {
            "request_id": call.request_id,
            "client": client[0] if client else "-",
            "method": scope["method"],
            "path": quote(scope["path"][:200]),
            "status": call.status or 500,
            "ms": round(seconds * 1000, 1),
            "bytes": call.bytes_out,
        }
        if call.tenant:
            fields["tenant"] = call.tenant
        if call.model:
            fields["model"] = call.model
        fields.update(call.notes)
        if transport_s is not None:
            fields["transport_ms"] = round(transport_s * 1000, 1)
        if call.error:
            fields["error"] = call.error
        log.info("request", extra={"fields": fields})
