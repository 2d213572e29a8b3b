"""What answers behind the routes: the gateway of `edgecloud serve`, or the one engine of a pool's server."""

from __future__ import annotations

from typing import Protocol

from edgecloud.engine import Engine
from edgecloud.http.merge import Events
from edgecloud.types import ChatRequest, ModelCard


class Backend(Protocol):
    """Models by name; an unknown one is a `ModelNotFound`."""

    def chat(self, request: ChatRequest) -> Events:
        """Events beginning with `Start`, once everything about the request is known to be right."""

    async def models(self, tenant: str | None = None) -> list[ModelCard]: ...

    async def engine_of(self, request: ChatRequest) -> Engine:
        """The engine that a request names. Raises `NoPermittedRoute` where it may not be told the text, be it
        for counting only.
        """

    async def count_tokens(self, request: ChatRequest) -> int: ...
