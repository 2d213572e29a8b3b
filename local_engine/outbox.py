"""What a step has to say to those who asked, handed over in one call per event loop."""

from __future__ import annotations

import asyncio

from .sequence import Message, Ticket


class Outbox:
    """Filled and flushed by the batcher's thread."""

    def __init__(self) -> None:
        self._posted: dict[int, Ticket] = {}

    def post(self, ticket: Ticket, message: Message) -> None:
        """Put a message beside the others that the ticket gets when the step is over."""
        ticket.outbox.append(message)
        self._posted[id(ticket)] = ticket

    def flush(self) -> None:
        """Hand all messages over. A ticket whose loop is closed is cancelled: nobody is left to receive."""
        if not self._posted:
            return
        mail: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, list[Message]]]] = {}
        for ticket in self._posted.values():
            mail.setdefault(ticket.loop, []).append((ticket, ticket.outbox))
            ticket.outbox = []
        self._posted.clear()
        for loop, parcels in mail.items():
            try:
                loop.call_soon_threadsafe(_deliver, parcels)
            except RuntimeError:
                for ticket, _ in parcels:
                    ticket.cancelled = True


def _deliver(parcels: list[tuple[Ticket, list[Message]]]) -> None:
    for ticket, messages in parcels:
        ticket.deliver(messages)
