"""What a thread says to somebody who waits on an event loop: messages in order, taken all at once."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Belongs to the event loop it is made on: `loop`, through which a thread delivers, with one
    `call_soon_threadsafe` for all that it has to say."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._messages: list[T] = []
        self._waiter: asyncio.Future[None] | None = None

    async def receive(self) -> list[T]:
        """All messages since the last call; waits for at least one. For one asker at a time."""
        if not self._messages:
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        messages, self._messages = self._messages, []
        return messages

    def deliver(self, messages: list[T]) -> None:
        """Called on the inbox's own loop."""
        self._messages.extend(messages)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
