"""What answers behind the routes: the gateway of `edgecloud serve`, or the one engine of a pool's server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgecloud.engine import Engine
from edgecloud.http.merge import Events
from edgecloud.types import ChatRequest, ModelCard


class Backend(Protocol):
    """Models by name; an unknown one is a `ModelNotFound`."""

    def chat(self, request: ChatRequest) -> Events:
        """Events beginning with `Start`, once everything about the request is known to be right."""

    async def models(self) -> list[ModelCard]: ...

    async def engine_of(self, model: str) -> Engine: ...

    async def count_tokens(self, request: ChatRequest) -> int: ...

    async def tokenize(
        self, model: str, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]: ...

    async def detokenize(self, model: str, ids: Sequence[int]) -> str: ...

    async def token_bytes(self, model: str, token_id: int) -> bytes: ...
