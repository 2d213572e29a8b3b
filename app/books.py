"""The gateway's bookkeeper: one thread that writes the ledger, so that a slow or locked disk stalls nobody.

Reserving is waited for, because nothing may be sent before; the line of a finished request is not. What a
locked or full disk refused is kept and written with the next line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from edgecloud.errors import StorageError

from .run import Closing

if TYPE_CHECKING:
    from ..router.budgets import Limit
    from ..router.decision import Decision
    from ..router.ledger import Ledger

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[["Ledger"], Any]

HEARTBEAT_S = 5.0
CLOSE_WAIT_S = 10.0
TIDY_EVERY = 1000
"""Requests after which old lines are removed."""
MOST_KEPT = 10_000
"""Lines kept while the disk refuses them; more are lost, and that is logged."""


class Books:
    """The ledger behind a queue. `open_ledger` runs in the thread at the first use."""

    def __init__(self, open_ledger: Callable[[], Ledger]) -> None:
        self._open_ledger = open_ledger
        self._ledger: Ledger | None = None
        self._queue: queue.SimpleQueue[tuple[Work, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._unwritten: list[Work] = []
        self._reserved: set[str] = set()
        self._num_settled = 0

    async def do(self, work: Callable[[Ledger], T]) -> T:
        """The result of `work` on the ledger. Raises what it raises."""
        result: T = await asyncio.wrap_future(self._submit(work))
        return result

    async def reserve(self, request_id: str, limits: Sequence[Limit], nano: int) -> None:
        """Set money aside before anything is sent. Raises `BudgetExceeded`, and `StorageError` where nobody
        can say what is left.
        """
        self._reserved.add(request_id)
        # A caller that leaves while it is written settles afterwards, in the order of the queue.
        reserving = self._submit(lambda ledger: ledger.reserve(request_id, limits, nano))
        await asyncio.shield(asyncio.wrap_future(reserving))

    def prepare(self) -> None:
        """Open the ledger now, while somebody else computes, so that nobody waits for it at the end."""
        if self._thread is None:
            opened = self._submit(lambda ledger: None)
            opened.add_done_callback(lambda future: future.cancelled() or future.exception())

    def settle(self, closing: Closing) -> None:
        """Write how a request ended and what it cost, now or as soon as the disk allows."""
        self._reserved.discard(closing.receipt.id)
        self._keep(lambda ledger: self._settle(ledger, closing))

    def bind(self, session: str, reasons: Any) -> None:
        """Keep why a conversation stays on this machine."""
        self._keep(lambda ledger: ledger.bind(session, reasons))

    def keep_engines(self, states: Mapping[str, Any]) -> None:
        """Keep what was learnt of engines."""
        self._keep(lambda ledger: ledger.keep_engines(states))

    async def aclose(self) -> None:
        """Write what is queued and stop the thread."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join, CLOSE_WAIT_S)

    # ------------------------------------------------------------------------------------------------- inside

    def _keep(self, work: Work) -> None:
        self._unwritten.append(work)
        # Who does not wait for it finds in the log what went wrong.
        written = self._submit(self._write_kept)
        written.add_done_callback(lambda future: future.cancelled() or future.exception())

    def _write_kept(self, ledger: Ledger) -> None:
        while self._unwritten:
            work = self._unwritten.pop(0)
            try:
                work(ledger)
            except StorageError:
                self._unwritten.insert(0, work)
                raise
            except Exception:
                log.exception("a line of the ledger could not be written")

    def _submit(self, work: Work) -> Future[Any]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="edgecloud-books", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._queue.put((work, future))
        return future

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=HEARTBEAT_S if self._reserved or self._unwritten else None)
            except queue.Empty:
                item = (self._beat, Future())
            if item is None:
                break
            self._work(*item)
        if self._unwritten:
            self._work(self._write_kept, Future())
        if self._ledger is not None:
            with contextlib.suppress(StorageError):
                self._ledger.close()

    def _settle(self, ledger: Ledger, closing: Closing) -> None:
        close_request(ledger, closing)
        self._num_settled += 1
        if self._num_settled % TIDY_EVERY == 0:
            ledger.tidy()

    def _beat(self, ledger: Ledger) -> None:
        if self._reserved:
            ledger.heartbeat(list(self._reserved))
        self._write_kept(ledger)

    def _work(self, work: Work, future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if self._ledger is None:
                ledger = self._open_ledger()
                ledger.reclaim()
                ledger.tidy()
                self._ledger = ledger
            future.set_result(work(self._ledger))
        except Exception as error:
            if isinstance(error, StorageError):
                log.warning("ledger: %s", error.message)
            self._bound()
            future.set_exception(error)

    def _bound(self) -> None:
        lost = len(self._unwritten) - MOST_KEPT
        if lost > 0:
            del self._unwritten[:lost]
            log.error("the ledger lost %d lines: the disk has refused them for too long", lost)


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
    ledger.settle(entry, attempts, closing.limits, _as_json(closing.decision))


def _as_json(decision: Decision | str | None) -> str | None:
    if decision is None:
        return None
    if isinstance(decision, str):
        return json.dumps({"refused": decision})
    from edgecloud.wire.native import dump_record

    return json.dumps(dump_record(decision))
