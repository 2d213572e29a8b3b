"""Registers handlers, so that each request knows the template of its path; log and metrics never name what
clients invent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response

from edgecloud.http.call import call_of

Handler = Callable[[Request], Awaitable[Response]]


def add_route(app: FastAPI, method: str, path: str, handler: Handler) -> None:
    """Answer `method` on `path` (a template as Starlette's) with `handler`.

    Not as one of FastAPI's own routes: what those read and check for a handler is read and checked here by
    `wire`.
    """

    async def endpoint(http: Request) -> Response:
        call_of(http.scope).route = path
        return await handler(http)

    app.add_route(path, endpoint, methods=[method])


def add_api(app: FastAPI, method: str, path: str, handler: Handler) -> None:
    """The same under `/v1` and, as llama.cpp's clients ask, without it."""
    for prefix in ("/v1", ""):
        add_route(app, method, f"{prefix}{path}", handler)
