"""What the chat needs of the rest of the house: a gateway, and the history behind threads."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol, TypeVar

from edgecloud.errors import StorageError
from edgecloud.folders import data_dir
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, Door, Event, Health, ModelCard, Receipt

from ..chats import Chat, ChatSummary, Hit, StoredMessage
from ..disk_thread import DiskThread
from ..forgetting import forget_chats
from ..history import History, Removal
from .state import receipt as receipts

T = TypeVar("T")

CLOSE_S = 1.0
"""How long the way out waits for the disk, in seconds."""


class Gateway(Protocol):
    """`app.gateway.Gateway`, `app.client.GatewayClient`, or a scripted one."""

    aside: str

    def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]: ...
    async def models(self) -> list[ModelCard]: ...
    async def count_tokens(self, request: ChatRequest) -> int: ...
    async def health(self) -> Health: ...
    async def explain(self, request: ChatRequest) -> dict[str, Any]: ...
    async def why(self, request_id: str) -> dict[str, Any]: ...
    async def blame(self, entry_id: str) -> bool: ...
    async def feedback(self, answer: str, verdict: str, *, over: Sequence[str] = ()) -> None: ...
    async def aclose(self) -> str: ...


class Store:
    """The history for a user interface: every call in a thread of ours, so that a slow disk stalls no key,
    and one that never answers not even the way out.

    `open_history` is None where history is off; `forget` deletes what was derived from chats. All methods
    raise `StorageError`.
    """

    def __init__(
        self,
        open_history: Callable[[], History] | None,
        forget: Callable[[list[str]], bool] = forget_chats,
    ) -> None:
        self._open = open_history
        self._forget = forget
        self._disk = _thread("chats", open_history)
        # What is written and read besides does not wait for a search.
        self._searches = _thread("search", open_history)
        self._searching: tuple[threading.Event, History] | None = None

    @property
    def is_on(self) -> bool:
        return self._open is not None

    async def chats(self, limit: int = 200, *, doors: Sequence[Door] = ()) -> tuple[ChatSummary, ...]:
        """Chats, the last used first, of some doors or of all; none where history is off."""
        return await self._do(lambda history: history.list(limit, doors=doors)) if self.is_on else ()

    async def last_chat(self) -> str | None:
        return await self._do(lambda history: history.last_chat()) if self.is_on else None

    async def resolve(self, name: str) -> str:
        """The chat that an id or the beginning of one means. Raises `NotFound`."""
        return await self._do(lambda history: history.resolve(name))

    async def unread(self) -> frozenset[str]:
        return await self._do(lambda history: history.unread()) if self.is_on else frozenset()

    async def prompts(self) -> tuple[str, ...]:
        return await self._do(lambda history: history.prompts()) if self.is_on else ()

    async def search(self, query: str, limit: int = 50) -> tuple[Hit, ...]:
        """Messages that hold the words, best first. One that nobody waits for any more is broken off."""
        if not self.is_on:
            return ()
        is_outdated = threading.Event()

        def search(history: History) -> tuple[Hit, ...]:
            self._searching = (is_outdated, history)
            try:
                return () if is_outdated.is_set() else history.search(query, limit)
            except StorageError:
                if is_outdated.is_set():
                    return ()  # as it was told to
                raise
            finally:
                self._searching = None

        try:
            return await asyncio.wrap_future(self._searches.submit(search))
        except asyncio.CancelledError:
            is_outdated.set()
            if (now := self._searching) is not None and now[0] is is_outdated:
                now[1].interrupt()
            raise

    async def chat(self, chat_id: str) -> tuple[Chat, dict[str, Receipt], Mapping[str, Any]]:
        """A whole chat, its receipts by id, and its notes. Raises `NotFound`."""

        def read(history: History) -> tuple[Chat, dict[str, Receipt], Mapping[str, Any]]:
            chat, stored = history.show(chat_id), history.receipts(chat_id)
            found = {id: receipts.parse(receipt) for id, receipt in stored.items()}
            return chat, found, history.notes(chat_id)

        return await self._do(read)

    async def was_removed(self, chat_id: str) -> bool:
        """Whether a chat that was kept once was removed since, by another program say."""
        return await self._do(lambda history: history.was_removed(chat_id))

    async def show(self, chat_id: str) -> Chat:
        return await self._do(lambda history: history.show(chat_id))

    async def requests_since(self, since: float) -> list[tuple[float, str, Receipt]]:
        """Requests from a moment on, oldest first: when, how they ended, the receipt. They are the ledger's,
        as `edgecloud stats` adds them up: of all doors, and also of chats that are deleted since.
        """

        def read(history: History) -> list[tuple[float, str, Receipt]]:
            from ...router.ledger import Ledger

            with closing(Ledger(history.path)) as ledger:
                rows = ledger.requests_since(since)
            return [(at, outcome, receipts.parse(stored)) for at, outcome, stored in rows]

        return await self._do(read)

    async def raw_receipts(self, chat_id: str) -> Mapping[str, Mapping[str, Any]]:
        return await self._do(lambda history: history.receipts(chat_id))

    async def rename(self, chat_id: str, title: str) -> None:
        await self._do(lambda history: history.rename(chat_id, title))

    async def show_branch(self, chat_id: str, message_id: str) -> None:
        await self._do(lambda history: history.show_branch(chat_id, message_id))

    async def set_notes(self, chat_id: str, values: Mapping[str, Any]) -> bool:
        """Whether there is such a chat to note them with."""
        return self.is_on and await self._do(lambda history: history.set_notes(chat_id, values))

    async def mark_read(self, chat_id: str) -> None:
        if self.is_on:
            await self._do(lambda history: history.mark_read(chat_id))

    async def insert(
        self,
        title: str,
        messages: Sequence[StoredMessage],
        head: str | None,
        stored: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        private: bool = False,
    ) -> str:
        """A new chat of these messages, pinned to this machine where it is `private`; returns its id."""
        return await self._do(lambda history: history.insert(title, messages, head, stored, private=private))

    async def remove(self, chat_id: str) -> Removal:
        """Delete a chat with everything derived from it, which goes first: should that fail, the chat is what
        it is found by again. Raises `StorageError`.
        """

        def remove(history: History) -> Removal:
            purged = self._forget([chat_id])
            removal = history.remove([chat_id])
            return dataclasses.replace(removal, purged=removal.purged and purged)

        return await self._do(remove)

    async def aclose(self) -> None:
        """Close the file. What the disk does not do within a moment is left undone: we end all the same."""
        await asyncio.gather(self._disk.aclose(CLOSE_S), self._searches.aclose(CLOSE_S))

    async def _do(self, work: Callable[[History], T]) -> T:
        if self._open is None:
            raise StorageError("History is off (`history.enabled`), so there is nothing kept to work on.")
        # Whoever stops waiting for it may still want it done.
        done: T = await asyncio.shield(asyncio.wrap_future(self._disk.submit(work)))
        return done


def _thread(name: str, open_history: Callable[[], History] | None) -> DiskThread[History]:
    def off() -> History:
        raise StorageError("History is off (`history.enabled`).")

    return DiskThread(name, open_history or off, tend=lambda history: None, pause=lambda: None)


def open_store(settings: Settings) -> Store:
    """The user's history, or none where it is switched off."""

    def open_history() -> History:
        history = History(data_dir() / "edgecloud.db")
        history.recover()
        return history

    return Store(open_history if settings.history.enabled else None)


async def which_chat(store: Store, name: str | None) -> str | None:
    """The chat to go on with: 'last', an id or the beginning of one; None is a new one. Raises `NotFound`."""
    if name is None:
        return None
    return await (store.last_chat() if name == "last" else store.resolve(name))
