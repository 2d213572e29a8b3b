"""The ledger in one database file."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgecloud.database import Database
from edgecloud.errors import NotFound
from edgecloud.owner import this_process
from edgecloud.storage import BUSY_S

from . import accounts, crashed, key_tokens, precedents, reading, reserving
from .deleted import is_deleted, note_deleted
from .entries import AnswerEntry, AttemptEntry, EngineSums, Precedent, RequestEntry
from .precedents import KeptPrecedents
from .tables import MIGRATIONS

if TYPE_CHECKING:
    from ..budgets import Limit
    from ..money import Price


class Ledger(Database):
    """Methods may be called from any thread; all raise `StorageError` when the file can't be used.

    `currency` is what sums are in; it only goes into sentences.
    """

    def __init__(
        self,
        path: Path,
        *,
        currency: str = "USD",
        clock: Callable[[], float] = time.time,
        busy_s: float = BUSY_S,
        for_reading: bool = False,
    ) -> None:
        super().__init__(path, MIGRATIONS, busy_s=busy_s, for_reading=for_reading)
        self._currency = currency
        self._clock = clock
        self._owner = this_process()

    # ------------------------------------------------------------------------------------------------- money

    def reserve(self, request_id: str, limits: Sequence[Limit], nano: int, engine: str = "") -> None:
        """Set `nano` more aside for a request, which `engine` gets, under all of its limits or none. Raises
        `BudgetExceeded`.
        """
        with self._writing() as connection:
            reserving.reserve(
                connection, request_id, limits, nano, self._owner, self._clock(), self._currency, engine
            )

    def sums(self, limits: Sequence[Limit]) -> tuple[tuple[int, int], ...]:
        """What is spent and what is reserved under each limit, in nano."""
        with self._reading() as connection:
            return tuple(reserving.sums(connection, limit) for limit in limits)

    def heartbeat(self, request_ids: Sequence[str]) -> None:
        """Say that these requests are still being answered."""
        with self._writing() as connection:
            connection.executemany(
                "UPDATE reservations SET beat = ? WHERE request_id = ?",
                [(self._clock(), request_id) for request_id in request_ids],
            )

    def reclaim(self) -> int:
        """Count as spent what dead processes had reserved, with a line for each; returns of how many
        requests.
        """
        with self._writing() as connection:
            orphans = reserving.reclaim(connection, self._clock())
            for orphan in orphans:
                crashed.write(connection, orphan, self._currency)
        return len(orphans)

    def tidy(self) -> None:
        """Remove what is too old to be looked at."""
        with self._writing() as connection:
            accounts.tidy(connection, self._clock())

    def reprice(self, engine: str, price: Price, since: float) -> int:
        """Count an engine's attempts since then (Unix seconds) at this price; returns the difference in
        nano.
        """
        with self._writing() as connection:
            return accounts.reprice(connection, engine, price, since)

    # ------------------------------------------------------------------------------------------------- lines

    def settle(
        self,
        entry: RequestEntry,
        attempts: Sequence[AttemptEntry],
        limits: Sequence[Limit],
        decision: str | None = None,
        *,
        precedent: Precedent | None = None,
        private: bool = False,
    ) -> None:
        """Close a request in one transaction: its line, its attempts, its decision (as JSON), its precedent,
        its money. Of a chat that was deleted meanwhile only what it cost; a `private` one has no precedents.
        """
        receipt = entry.receipt
        with self._writing() as connection:
            if is_deleted(connection, entry.chat_id):
                entry, decision, precedent = dataclasses.replace(entry, chat_id=None), None, None
            accounts.write_request(connection, entry)
            accounts.write_attempts(connection, receipt.id, attempts, limits)
            if decision is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?, ?)",
                    (receipt.id, entry.created, entry.tenant, entry.chat_id, decision),
                )
            if private and entry.chat_id is not None:
                precedents.forget(connection, entry.chat_id)
            elif precedent is not None:
                precedents.write(connection, precedent)
            reserving.settle(connection, receipt.id, limits, entry.nano)

    def bind(self, session: str, reasons: Any) -> None:
        """Keep, as JSON, why a conversation stays on this machine."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO private_sessions VALUES (?, ?, ?)",
                (session, self._clock(), json.dumps(reasons)),
            )

    def binding(self, session: str) -> Any:
        """What `bind` kept for a conversation, None where it is not bound."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT json FROM private_sessions WHERE session = ?", (session,)
            ).fetchone()
        return json.loads(row[0]) if row else None

    def forget_chats(self, chat_ids: Sequence[str]) -> None:
        """Remove what was decided in chats, and which requests were theirs, also of what is still under way;
        what was spent stays counted.
        """
        with self._writing() as connection:
            note_deleted(connection, chat_ids, self._clock())
            for chat_id in chat_ids:
                connection.execute("DELETE FROM private_sessions WHERE session = ?", (chat_id,))
                connection.execute("DELETE FROM decisions WHERE chat_id = ?", (chat_id,))
                precedents.forget(connection, chat_id)
                connection.execute("UPDATE requests SET chat_id = NULL WHERE chat_id = ?", (chat_id,))

    def keep_engines(self, states: Mapping[str, Any]) -> None:
        """Keep what was learnt of engines, by name, as JSON."""
        now = self._clock()
        with self._writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO engines VALUES (?, ?, ?)",
                [(name, now, json.dumps(state)) for name, state in states.items()],
            )

    # ------------------------------------------------------------------------------------------------ reading

    def engines(self) -> dict[str, tuple[float, Any]]:
        """What was kept of engines: when (Unix seconds), and what."""
        with self._reading() as connection:
            rows = connection.execute("SELECT name, updated, json FROM engines").fetchall()
        return {name: (updated, json.loads(text)) for name, updated, text in rows}

    def receipt(self, name: str, *, tenant: str | None = None) -> dict[str, Any]:
        """A request's line with its receipt and attempts: by its id, the unique beginning of one, or '' for
        the last. With a `tenant` other keys' requests are as if they were not there. Raises `NotFound`.
        """
        request_id = self._resolve(name, tenant)
        with self._reading() as connection:
            return reading.receipt(connection, request_id)

    def decision(self, request_id: str) -> dict[str, Any] | None:
        """What was decided for a request, None where nothing was."""
        with self._reading() as connection:
            return reading.decision(connection, request_id)

    def precedents(self, after: int = 0, pending: Collection[Precedent] = ()) -> KeptPrecedents:
        """Which engines were first for the last questions, of those after a number, and which of the
        `pending` are no longer that.
        """
        with self._snapshot() as connection:
            return precedents.read(connection, after, pending)

    def tokens_on(self, tenant: str, day: str) -> int:
        """Tokens asked and answered with a key on a local day (`2026-11-30`)."""
        with self._reading() as connection:
            return key_tokens.on(connection, tenant, day)

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """The last requests, the latest first."""
        with self._reading() as connection:
            return reading.recent(connection, limit)

    def last_answers(self, engine: str, limit: int) -> list[AnswerEntry]:
        """How fast an engine's own last whole answers were, the latest first."""
        with self._reading() as connection:
            return reading.last_answers(connection, engine, limit)

    def requests_since(self, since: float) -> list[tuple[float, str, dict[str, Any]]]:
        """Every request since then (Unix seconds), oldest first: when, its outcome, its receipt."""
        with self._reading() as connection:
            return reading.requests_since(connection, since)

    def sums_since(self, since: float, *, by_day: bool = False) -> tuple[EngineSums, ...]:
        """What each engine did since then (Unix seconds), or on each day since then, in order of days."""
        with self._reading() as connection:
            return reading.sums(connection, since, by_day=by_day)

    # ------------------------------------------------------------------------------------------------- inside

    def _resolve(self, name: str, tenant: str | None) -> str:
        with self._reading() as connection:
            ids = reading.matching(connection, name, tenant)
        if name in ids or len(ids) == 1:
            return name if name in ids else ids[0]
        if ids:
            raise NotFound(f"{len(ids)} requests begin with {name[:80]!r}: give more of the id.")
        raise NotFound(
            f"There is no request {name[:80]!r}; `edgecloud route history` lists the last ones."
            if name
            else "No request has been answered yet."
        )
