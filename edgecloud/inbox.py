"""What a thread says to those who wait on event loops: messages in order, handed over all at once."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Inbox(ABC, Generic[T]):
    """Belongs to the event loop it is made on, `loop`. A thread fills it through an `Outbox`."""

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

    @abstractmethod
    def cancel(self) -> None:
        """Nobody will receive any more."""


class Outbox(Generic[T]):
    """What one thread has to say, to anybody: sent with one call per event loop."""

    def __init__(self) -> None:
        self._messages: dict[Inbox[T], list[T]] = {}

    def post(self, inbox: Inbox[T], message: T) -> None:
        """Put a message beside the others that are sent next."""
        self._messages.setdefault(inbox, []).append(message)

    def send(self) -> None:
        """Hand over what was posted. An inbox whose event loop is closed is cancelled."""
        mail: dict[asyncio.AbstractEventLoop, list[tuple[Inbox[T], list[T]]]] = {}
        for inbox, messages in self._messages.items():
            mail.setdefault(inbox.loop, []).append((inbox, messages))
        self._messages.clear()
        for loop, parcels in mail.items():
            try:
                loop.call_soon_threadsafe(_deliver, parcels)
            except RuntimeError:
                for inbox, _ in parcels:
                    inbox.cancel()


def _deliver(parcels: list[tuple[Inbox[Any], list[Any]]]) -> None:
    for inbox, messages in parcels:
        inbox.deliver(messages)
