"""A gateway that outlasts its server: where that is gone, another server's or this process's own goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from edgecloud.types import ChatRequest, Event, Health, ModelCard

from ..client import Gone
from .ports import Gateway

T = TypeVar("T")


class Lasting:
    """`gateway` until it is gone, then what `reopen` gives. What was asked is asked again only where nothing
    was heard of it: an answer that breaks off stays so, and is gone on with when the user says it.
    """

    def __init__(self, gateway: Gateway, reopen: Callable[[], Awaitable[Gateway]]) -> None:
        self.aside = gateway.aside
        self._gateway = gateway
        self._reopen = reopen
        self._reopening = asyncio.Lock()

    async def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]:
        gateway = self._gateway
        try:
            async with aclosing(gateway.chat(request)) as events:
                async for event in events:
                    yield event
            return
        except Gone:
            gateway = await self._instead_of(gateway)
        async with aclosing(gateway.chat(request)) as events:
            async for event in events:
                yield event

    async def models(self) -> list[ModelCard]:
        return await self._do(lambda gateway: gateway.models())

    async def count_tokens(self, request: ChatRequest) -> int:
        return await self._do(lambda gateway: gateway.count_tokens(request))

    async def health(self) -> Health:
        return await self._do(lambda gateway: gateway.health())

    async def explain(self, request: ChatRequest) -> dict[str, Any]:
        return await self._do(lambda gateway: gateway.explain(request))

    async def why(self, request_id: str) -> dict[str, Any]:
        return await self._do(lambda gateway: gateway.why(request_id))

    async def blame(self, entry_id: str) -> bool:
        return await self._do(lambda gateway: gateway.blame(entry_id))

    async def feedback(self, answer: str, verdict: str, *, over: Sequence[str] = ()) -> None:
        await self._do(lambda gateway: gateway.feedback(answer, verdict, over=over))

    async def aclose(self) -> str:
        return await self._gateway.aclose()

    async def _do(self, call: Callable[[Gateway], Awaitable[T]]) -> T:
        gateway = self._gateway
        try:
            return await call(gateway)
        except Gone:
            return await call(await self._instead_of(gateway))

    async def _instead_of(self, gone: Gateway) -> Gateway:
        async with self._reopening:
            if self._gateway is gone:  # else another call found out before
                self._gateway = await self._reopen()
            return self._gateway
