"""Every error as the shape its caller parses: OpenAI's envelope, or Anthropic's on Anthropic's routes."""

from __future__ import annotations

import asyncio
import logging
import math

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from edgecloud.errors import (
    BadRequest,
    BudgetExceeded,
    EdgeCloudError,
    MethodNotAllowed,
    NoPermittedRoute,
    NotFound,
    sentence,
)
from edgecloud.http.asgi import ASGIApp, Message, Receive, Scope, Send, header, json_bytes, reply
from edgecloud.http.call import call_of
from edgecloud.wire.errors import anthropic_error, openai_error

log = logging.getLogger("edgecloud.http")

LINGER_S = 2.0
SMALL_BODY = 2**16


class ClientGone(Exception):
    """The client closed its connection: nobody is left to answer, and nothing went wrong."""


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the path is one of Anthropic's."""
    path: str = scope["path"]
    return path.removeprefix("/v1").startswith("/messages")


def error_headers(error: EdgeCloudError) -> list[tuple[bytes, bytes]]:
    """What tells a client whether and when to come back.

    OpenAI's SDKs repeat every 408, 409, 429 and 5xx twice unless told otherwise: on a local model that is
    three generations.
    """
    headers = []
    refused = isinstance(error, BudgetExceeded | NoPermittedRoute)
    if (error.status >= 500 or refused) and not error.retryable:
        headers.append((b"x-should-retry", b"false"))
    retry_after = error.retry_after
    if retry_after is None and error.status in (429, 503):
        retry_after = 1.0
    if retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(retry_after))).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


async def send_problem(scope: Scope, receive: Receive, send: Send, error: EdgeCloudError) -> None:
    """Answer with an error. If a large body has not been read to its end, the connection closes behind the
    answer.

    Closing on a client that is still sending would reset the connection and lose the answer: what arrives is
    thrown away for a moment first.
    """
    call = call_of(scope)
    unread = not call.body_read and _sends_much(scope)
    call.error = error.code or error.type
    if speaks_anthropic(scope):
        body = anthropic_error(error, request_id=call.request_id)
    else:
        body = openai_error(error)
    headers = error_headers(error)
    if unread:
        headers.append((b"connection", b"close"))
    if isinstance(error, MethodNotAllowed) and "allow" in error.extra:
        headers.append((b"allow", str(error.extra["allow"]).encode("latin-1")))
    await reply(send, error.status, json_bytes(body), headers, more=unread)
    if unread:
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


def _sends_much(scope: Scope) -> bool:
    length = header(scope, b"content-length")
    if length is not None:
        return int(length) > SMALL_BODY if length.isdecimal() else True
    return header(scope, b"transfer-encoding") is not None


class Problems:
    """The innermost layer: turns what the app raises into an answer, as long as none has begun."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except ClientGone:
            call_of(scope).error = "client_gone"
        except Exception as error:
            shown = sentence(error)
            if shown is not error:
                log.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise
            await send_problem(scope, receive, send, shown)


async def raise_as_ours(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, as ours: registered for its `HTTPException`."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:80]}"
    if error.status_code == 404:
        raise NotFound(f"There is nothing at {where}.")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        raise MethodNotAllowed(f"{where} is not possible here: use {allow}.", extra={"allow": allow})
    raise BadRequest(str(error.detail)[:200])
