"""The history in one open database file: each method one transaction, under one lock.

An answer being written belongs to a process; if that dies, the next one to `recover` keeps the partial and
marks it interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgecloud.database import Database
from edgecloud.owner import this_process
from edgecloud.storage import BUSY_S
from edgecloud.types import ChatRequest, Door, Message, Receipt, ToolCall

from ..chats import OWN_DOORS, Asked, Chat, ChatSummary, Hit, Seam, Status, StoredMessage, Turn, new_turn
from . import organizing, reading, removing, searching, writing
from .removing import Removal
from .tables import MIGRATIONS

_DAY_S = 86400.0


class History(Database):
    """Methods may be called from any thread; all raise `StorageError`."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        busy_s: float = BUSY_S,
        for_reading: bool = False,
    ) -> None:
        super().__init__(path, MIGRATIONS, busy_s=busy_s, for_reading=for_reading)
        self._clock = clock
        self._owner = this_process()

    # ------------------------------------------------------------------------------- writing an answer

    def begin(self, request: ChatRequest, turn: Turn | None = None) -> Turn:
        """Write the prompt, and one running answer a choice, before any work is done for it; under the ids of
        `turn`, where they were given out already, but for the chat's of a request that goes on with another.
        """
        with self._writing() as connection:
            return writing.begin(connection, request, turn or new_turn(request), self._owner, self._clock())

    def chat_of(self, request: ChatRequest) -> str | None:
        """The chat that a request goes on with; None where it begins one."""
        with self._reading() as connection:
            return writing.chat_of(connection, request)

    def append(self, turn: Turn, index: int, text: str, reasoning: str = "") -> None:
        """Keep a slice of a running answer; of one that was removed meanwhile, nothing."""
        with self._writing() as connection:
            writing.append(connection, turn.message_ids[index], text, reasoning, self._clock())

    def heartbeat(self, turn: Turn) -> None:
        """Say that the running answers are still worked on."""
        with self._writing() as connection:
            for message_id in turn.message_ids:
                writing.touch(connection, message_id, self._clock())

    def finish(
        self,
        turn: Turn,
        receipt: Receipt | None,
        reasons: Mapping[int, str],
        tool_calls: Mapping[int, Sequence[ToolCall]],
        status: Status,
        error: str | None = None,
        seams: Sequence[Seam] = (),
        rest: Mapping[int, tuple[str, str]] | None = None,
    ) -> None:
        """End the running answers: fold the slices of each and its `rest` (text and reasoning by choice) into
        one content, and keep the receipt and the first choice's seams.
        """
        with self._writing() as connection:
            writing.finish(
                connection,
                turn,
                receipt,
                reasons,
                tool_calls,
                status,
                error,
                self._clock(),
                seams,
                rest or {},
            )

    def recover(self) -> int:
        """Keep what dead processes had written and mark it interrupted; finish a purge that was blocked.

        Returns how many answers were recovered. One taken from a live process by mistake is set right when
        that finishes it.
        """
        with self._writing() as connection:
            num_recovered = writing.recover(connection, self._clock())
        with self._reading() as connection:
            removing.purge_if_pending(connection)
        return num_recovered

    # ----------------------------------------------------------------------------------------- reading

    def last_chat(self, doors: Sequence[Door] = OWN_DOORS) -> str | None:
        """The chat last used through one of the doors: an agent's traffic is not 'my last chat'."""
        with self._reading() as connection:
            return reading.last_chat(connection, doors)

    def messages(self, chat_id: str) -> tuple[Message, ...]:
        """The conversation that ends in the latest answer, to be continued.

        What an answer held when it failed is left out, and so is one with nothing in it: the question before
        it stands, unanswered. An interrupted answer is kept as far as it came.
        """
        return tuple(
            stored.message
            for stored in self.show(chat_id).conversation
            if stored.message.role != "assistant"
            or (stored.status != "failed" and (stored.message.content or stored.message.tool_calls))
        )

    def list(
        self, limit: int = 50, offset: int = 0, *, doors: Sequence[Door] = ()
    ) -> tuple[ChatSummary, ...]:
        """Chats, the last used first; of all doors where none is named."""
        with self._reading() as connection:
            return reading.recent(connection, doors, limit, offset)

    def resolve(self, name: str) -> str:
        """The chat that an id or its unique beginning means. Raises `NotFound`."""
        with self._reading() as connection:
            return reading.resolve(connection, name)

    def show(self, chat_id: str) -> Chat:
        """Everything in one chat. Raises `NotFound`."""
        with self._snapshot() as connection:
            return reading.show(connection, chat_id)

    def search(self, query: str, limit: int = 50) -> tuple[Hit, ...]:
        """Messages that hold all words of the query, best first."""
        with self._reading() as connection:
            return searching.search(connection, query, limit)

    def asked(self, name: str) -> Asked | None:
        """What an answer, by its own id or its request's, was an answer to; None where it is not known."""
        with self._snapshot() as connection:
            return reading.asked(connection, name)

    def decision(self, receipt_id: str) -> Mapping[str, Any] | None:
        """The receipt of an answer as it was stored, with its `chat_id`."""
        with self._reading() as connection:
            return reading.decision(connection, receipt_id)

    # -------------------------------------------------------------------------------------- organizing

    def rename(self, chat_id: str, title: str) -> None:
        """Give a chat another title. Raises `BadRequest` for an empty one, `NotFound`."""
        with self._writing() as connection:
            organizing.rename(connection, chat_id, title)

    def show_branch(self, chat_id: str, message_id: str) -> None:
        """Let the chat open on the branch that ends in this message."""
        with self._writing() as connection:
            organizing.show_branch(connection, chat_id, message_id)

    def notes(self, chat_id: str) -> Mapping[str, Any]:
        """What was noted about a chat: its system prompt, parameters, pins."""
        with self._reading() as connection:
            return organizing.notes(connection, chat_id)

    def set_notes(self, chat_id: str, values: Mapping[str, Any]) -> bool:
        """Note these instead of what was noted; False if there is no such chat."""
        with self._writing() as connection:
            return organizing.set_notes(connection, chat_id, values)

    def mark_read(self, chat_id: str) -> None:
        """Say that all of the chat was seen."""
        with self._writing() as connection:
            organizing.mark_read(connection, chat_id, self._clock())

    def unread(self) -> frozenset[str]:
        """Chats that were read once and have something new since."""
        with self._reading() as connection:
            return organizing.unread(connection)

    def prompts(self, limit: int = 200) -> tuple[str, ...]:
        """What a person asked last, oldest first, each text once."""
        with self._reading() as connection:
            return organizing.prompts(connection, limit)

    def receipts(self, chat_id: str) -> Mapping[str, Mapping[str, Any]]:
        """The receipts of a chat's answers by id, as they were stored."""
        with self._reading() as connection:
            return organizing.receipts(connection, chat_id)

    def insert(
        self,
        title: str,
        messages: Sequence[StoredMessage],
        head: str | None,
        receipts: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        private: bool = False,
    ) -> str:
        """A new chat of these messages under new ids, a fork or an import, pinned to this machine where it is
        `private`; returns its id.
        """
        with self._writing() as connection:
            return organizing.insert(
                connection, title, messages, head, self._clock(), receipts or {}, private=private
            )

    # ---------------------------------------------------------------------------------------- removing

    def remove(self, chat_ids: Sequence[str]) -> Removal:
        """Delete chats and what only they hold, from the tables, the index, the free pages and the WAL."""
        with self._reading() as connection:
            return removing.remove(connection, chat_ids)

    def was_removed(self, chat_id: str) -> bool:
        """Whether a chat that was kept here once was removed since, by another program say."""
        with self._reading() as connection:
            return removing.was_removed(connection, chat_id)

    def expired(self, retention_days: int) -> tuple[str, ...]:
        """The chats last used longer ago than this, but running ones; none for 0, which keeps all."""
        if retention_days <= 0:
            return ()
        with self._reading() as connection:
            return tuple(removing.expired(connection, self._clock() - retention_days * _DAY_S))
