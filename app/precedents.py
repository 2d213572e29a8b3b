"""Who was first for questions like one at hand, as all processes of this user know it."""

from __future__ import annotations

import asyncio
import contextlib

from edgecloud.errors import StorageError
from edgecloud.settings import Settings

from ..router.facts import Facts
from ..router.precedents import Precedents, precedent_of
from .books import Books
from .run import Run

PATIENCE_S = 0.5
"""How long a request waits for a disk that does not answer, once for all that wait meanwhile; where it
doesn't, what this process knows decides.
"""


class PrecedentDesk:
    """Reads what the ledger has since it last looked, and has new ones kept there with the requests."""

    def __init__(self, settings: Settings, books: Books | None) -> None:
        self._keeps = settings.history.enabled
        self._books = books
        self._precedents = Precedents()
        self._reading: asyncio.Task[None] | None = None
        self._give_up_at = 0.0

    def look(self) -> None:
        """Have it read what there is by now, for a question whose vector is still being made."""
        if self._books is not None and (self._reading is None or self._reading.done()):
            loop = asyncio.get_running_loop()
            self._reading = loop.create_task(self._read(self._books))
            self._give_up_at = loop.time() + PATIENCE_S

    async def of(self, facts: Facts) -> str | None:
        """Which engine was first for the question that is most like this one, of those that were there at the
        last `look`; None where none is alike.
        """
        if facts.vector is None:
            return None
        if self._reading is not None and not self._reading.done():
            left_s = self._give_up_at - asyncio.get_running_loop().time()
            await asyncio.wait([self._reading], timeout=max(0.0, left_s))
        return self._precedents.of(facts)

    def note(self, run: Run, facts: Facts, engine: str, chat_id: str | None) -> None:
        """The engine is first for a question of the chat. It is kept with the chat, where that is kept."""
        precedent = precedent_of(facts, engine, chat_id if self._keeps and run.request.journal else None)
        if precedent is None:
            return
        self._precedents.note(precedent)
        if precedent.chat_id is not None:
            run.precedent = precedent

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, books: Books) -> None:
        with contextlib.suppress(StorageError):  # the books have logged it
            while not self._precedents.catch_up(
                await books.look(
                    lambda ledger: ledger.precedents(self._precedents.last, self._precedents.pending)
                )
            ):
                pass
