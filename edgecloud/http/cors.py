"""Which web pages may call us. A page that may not is refused outright: a browser sends a plain POST
without asking first.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from edgecloud.errors import PermissionDenied
from edgecloud.http.asgi import ASGIApp, Message, Receive, Scope, Send, header
from edgecloud.http.asked import HEADERS
from edgecloud.http.origin import NAMES
from edgecloud.http.problem import send_problem

POLICY_LOCALHOST = "localhost"

METHODS = b"GET, POST, OPTIONS"
REQUEST_HEADERS = (
    "accept",
    "authorization",
    "content-type",
    "x-api-key",
    "x-request-id",
    *HEADERS,
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "openai-organization",
    "openai-project",
    "openai-beta",
    "user-agent",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-poll-helper",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
)
RESPONSE_HEADERS = b", ".join(
    (
        b"x-request-id",
        *NAMES,
        b"x-edgecloud-truncated",
        b"x-should-retry",
        b"retry-after",
    )
)
MAX_AGE_S = b"600"


class Cors:
    """`origins` are exact origins, `localhost` (http or https on a loopback name, any port), or `*`.

    Never `Allow-Credentials`: keys travel in headers that a page sets itself, cookies mean nothing here.
    """

    def __init__(self, app: ASGIApp, *, origins: Iterable[str] = (POLICY_LOCALHOST,)) -> None:
        self.app = app
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = header(scope, b"origin") if scope["type"] == "http" else None
        if origin is None:
            return await self.app(scope, receive, send)
        if not self._allows(origin, header(scope, b"host")):
            error = PermissionDenied(
                "This web page may not call edgecloud: add its origin to server.cors_origins."
            )
            return await send_problem(scope, receive, send, error)

        headers = [
            (b"access-control-allow-origin", b"*" if "*" in self._origins else origin.encode("latin-1"))
        ]
        if "*" not in self._origins:
            headers.append((b"vary", b"Origin"))
        if scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None:
            return await self._preflight(scope, send, headers)
        headers.append((b"access-control-expose-headers", RESPONSE_HEADERS))

        async def with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self.app(scope, receive, with_cors)

    def _allows(self, origin: str, host: str | None) -> bool:
        if "*" in self._origins or origin.lower() in self._origins:
            return True
        try:
            parts = urlsplit(origin.lower())
            parts.port  # noqa: B018 - raises on a port that is none
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != origin.lower():
            return False
        if host is not None and parts.netloc == host.lower():
            return True
        return POLICY_LOCALHOST in self._origins and parts.hostname in ("localhost", "127.0.0.1", "::1")

    async def _preflight(self, scope: Scope, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        asked = (header(scope, b"access-control-request-headers") or "").lower().split(",")
        stainless = {name.strip() for name in asked if name.strip().startswith("x-stainless-")}
        names = (*REQUEST_HEADERS, *sorted(stainless.difference(REQUEST_HEADERS))[:16])
        headers += [
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", ", ".join(names).encode("latin-1")),
            (b"access-control-max-age", MAX_AGE_S),
        ]
        if header(scope, b"access-control-request-private-network") == "true":
            headers.append((b"access-control-allow-private-network", b"true"))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
