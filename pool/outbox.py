"""Messages from the step loop's thread to event loops: everything of a step in one call per event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from .ticket import Message, Ticket

Parcel = tuple[Ticket, list[Message]]


class Outbox:
    """Written and sent by one thread."""

    def __init__(self) -> None:
        self._messages: dict[Ticket, list[Message]] = {}

    def post(self, ticket: Ticket, message: Message) -> None:
        self._messages.setdefault(ticket, []).append(message)

    def send(self) -> None:
        """Hand over what was posted. A ticket whose event loop is closed is cancelled: nobody receives."""
        if not self._messages:
            return
        mail: dict[asyncio.AbstractEventLoop, list[Parcel]] = {}
        for ticket, messages in self._messages.items():
            mail.setdefault(ticket.loop, []).append((ticket, messages))
        self._messages.clear()
        for loop, parcels in mail.items():
            try:
                loop.call_soon_threadsafe(_deliver, parcels)
            except RuntimeError:
                for ticket, _ in parcels:
                    ticket.cancel()


def _deliver(parcels: Iterable[Parcel]) -> None:
    for ticket, messages in parcels:
        ticket.deliver(messages)
