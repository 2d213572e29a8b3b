"""The gateway's bookkeeper: the ledger, written in a thread of its own.

Reserving is waited for, because nothing may be sent before; the line of a finished request is not. What a
locked or full disk refused is kept and written as soon as it can be. Money that was spent and still can't be
written down when the program ends is told.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from edgecloud.errors import EdgeCloudError, StorageError

from .disk_thread import RETRY_S, DiskThread
from .run import Closing, Decided

if TYPE_CHECKING:
    from ..router.budgets import Limit
    from ..router.ledger import Ledger

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[["Ledger"], Any]

LINGER_S = 0.1
"""How long a line that says of no money may wait for others, to be written with them in one transaction."""
HEARTBEAT_S = 5.0
CLOSE_WAIT_S = 30.0
"""How long the end of the program waits for another's lock with money to count."""
CLOSE_IMPATIENT_S = 2.0
"""The same with lines that nobody misses."""
TIDY_EVERY = 1000
"""Requests after which old lines are removed."""
MOST_KEPT = 10_000
"""Lines kept while the disk refuses them; more are lost, and that is logged."""


class Line(NamedTuple):
    """One thing to write, and whether it says that money was spent."""

    write: Work
    is_paid: bool = False


class Books:
    """The ledger behind a queue. `open_ledger` runs in the thread at the first use."""

    def __init__(self, open_ledger: Callable[[], Ledger]) -> None:
        self._open_ledger = open_ledger
        self._thread: DiskThread[Ledger] = DiskThread(
            "books", self._opened, tend=self._tend, pause=self._pause
        )
        self._unwritten: list[Line] = []
        self._lock = threading.Lock()
        """Of the lines: they are added here and taken away in the thread."""
        self._reserved: set[str] = set()
        self._num_settled = 0

    async def do(self, work: Callable[[Ledger], T]) -> T:
        """The result of `work` on the ledger. Raises what it raises."""

        def caught_up(ledger: Ledger) -> T:
            with suppress(StorageError):
                self._write_kept(ledger)
            return work(ledger)

        return await asyncio.wrap_future(self._thread.submit(caught_up))

    async def look(self, work: Callable[[Ledger], T]) -> T:
        """The result of `work`, which only reads, on the ledger as the file has it: what waits to be written
        is not written for it. Raises what it raises.
        """
        return await asyncio.wrap_future(self._thread.submit(work))

    async def reserve(self, request_id: str, limits: Sequence[Limit], nano: int, engine: str = "") -> None:
        """Set money aside before anything is sent, for `engine`. Raises `BudgetExceeded`, and `StorageError`
        where nobody can say what is left.
        """
        is_first = request_id not in self._reserved
        self._reserved.add(request_id)
        # A caller that leaves while it is written settles afterwards, in the order of the queue.
        reserving = self._thread.submit(lambda ledger: ledger.reserve(request_id, limits, nano, engine))
        try:
            await asyncio.shield(asyncio.wrap_future(reserving))
        except EdgeCloudError:
            if is_first:
                # Nothing is set aside, so nothing will have been spent.
                self._reserved.discard(request_id)
            raise

    def prepare(self) -> None:
        """Open the ledger now, while somebody else computes, so that nobody waits for it at the end."""
        if not self._thread.has_begun:
            opened = self._thread.submit(lambda ledger: None)
            opened.add_done_callback(lambda future: future.cancelled() or future.exception())

    def settle(self, closing: Closing) -> None:
        """Write how a request ended and what it cost, now or as soon as the disk allows."""
        is_paid = closing.receipt.id in self._reserved or any(tried.nano for tried in closing.tried)
        self._reserved.discard(closing.receipt.id)
        self._keep(lambda ledger: self._settle(ledger, closing), is_paid=is_paid)

    def bind(self, session: str, reasons: Any) -> None:
        """Keep why a conversation stays on this machine."""
        self._keep(lambda ledger: ledger.bind(session, reasons))

    def keep_engines(self, states: Mapping[str, Any]) -> None:
        """Keep what was learnt of engines."""
        self._keep(lambda ledger: ledger.keep_engines(states))

    async def aclose(self, *, patient: bool = False) -> str:
        """Write what is left, and stop. Where another program holds the file, money is waited for until it
        can be counted, for `CLOSE_WAIT_S` seconds, and everything where one is `patient` anyway.

        Returns what to tell the user of what is lost; empty if nothing is.
        """
        is_worth_it = patient or any(line.is_paid for line in self._unwritten)
        refusal = await self._thread.aclose(CLOSE_WAIT_S if is_worth_it else CLOSE_IMPATIENT_S)
        num_paid = sum(line.is_paid for line in self._unwritten)
        if refusal is None or not num_paid:
            return ""
        requests = "a request" if num_paid == 1 else f"{num_paid} requests"
        return f"What {requests} cost is not counted: {refusal.message}"

    # ------------------------------------------------------------------------------------------------- inside

    def _keep(self, work: Work, *, is_paid: bool = False) -> None:
        with self._lock:
            self._unwritten.append(Line(work, is_paid))
            lost = len(self._unwritten) - MOST_KEPT
            del self._unwritten[: max(0, lost)]
        if lost > 0:
            log.error("the ledger lost %d lines: the disk has refused them for too long", lost)
        if not is_paid:
            self._thread.tend_within(LINGER_S)
            return
        # Who does not wait for it finds in the log what went wrong.
        written = self._thread.submit(self._write_kept)
        written.add_done_callback(lambda future: future.cancelled() or future.exception())

    def _opened(self) -> Ledger:
        ledger = self._open_ledger()
        try:
            ledger.reclaim()
            ledger.tidy()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _pause(self) -> float | None:
        if self._unwritten:
            return RETRY_S
        return HEARTBEAT_S if self._reserved else None

    def _tend(self, ledger: Ledger) -> None:
        if self._reserved:
            ledger.heartbeat(list(self._reserved))
        self._write_kept(ledger)

    def _write_kept(self, ledger: Ledger) -> None:
        """Write the lines that wait, in one transaction; what cannot be written stays for later."""
        lines = list(self._unwritten)
        if not lines:
            return
        with ledger.together():
            for line in lines:
                try:
                    line.write(ledger)
                except StorageError:
                    raise
                except Exception:
                    log.exception("a line of the ledger could not be written")
        written = set(map(id, lines))
        with self._lock:
            self._unwritten = [line for line in self._unwritten if id(line) not in written]

    def _settle(self, ledger: Ledger, closing: Closing) -> None:
        close_request(ledger, closing)
        self._num_settled += 1
        if self._num_settled % TIDY_EVERY == 0:
            # A line of its own: what is settled must not be settled again because this was refused.
            self._unwritten.append(Line(lambda ledger: ledger.tidy()))


def close_request(ledger: Ledger, closing: Closing) -> None:
    """One transaction with everything that is kept of a request."""
    # Here and not above: an answer without a router must not wait for the import.
    from ..router.ledger import AttemptEntry, RequestEntry

    entry = RequestEntry(
        closing.receipt,
        closing.created,
        closing.door,
        closing.tenant,
        closing.chat_id,
        closing.outcome,
        sum(tried.nano for tried in closing.tried),
    )
    attempts = [
        AttemptEntry(
            tried.engine,
            tried.replica,
            tried.started,
            tried.seconds,
            tried.outcome,
            tried.usage,
            tried.nano,
            tried.at_least,
        )
        for tried in closing.tried
    ]
    ledger.settle(
        entry,
        attempts,
        closing.limits,
        _as_json(closing.decision),
        precedent=closing.precedent,
        private=closing.private,
    )


def _as_json(decision: Decided | str | None) -> str | None:
    if decision is None:
        return None
    if isinstance(decision, str):
        return json.dumps({"refused": decision})
    from edgecloud.wire.native import dump_record

    told = decision.decision
    try:
        told = decision.explained()
    except Exception:
        # What a request cost is written down whatever becomes of the words around it.
        log.exception("a decision could not be explained")
    return json.dumps(dump_record(told))
