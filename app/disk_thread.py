"""A thread that owns a database, so that a slow or locked disk stalls nobody; what is refused is tried again.

    submit -> queue -> done in order, each waiting as long as the database does for another program's lock
    tend   -> what is still to do, every `pause()` seconds, sooner where somebody asks for it, and at the end
              until the disk takes it

A lock that outlasted one wait is not waited for again: until something succeeds all are refused at once, or
each of a hundred requests would stand there for ten seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, Literal, Protocol, TypeVar

from edgecloud.errors import EdgeCloudError, StorageError
from edgecloud.storage import DatabaseLocked

log = logging.getLogger(__name__)

RETRY_S = 2.0
"""Between two tries of what the disk refused."""
LAST_RETRY_S = 0.1
"""The same at the end, when somebody waits for it."""
IMPATIENT_S = 0.05
"""How long a lock is waited for that was waited for already."""
REST_S = 2.0
"""How long a file that could not be opened in more time than `SLOW_S` is left alone."""
SLOW_S = 1.0


Sign = Literal["wake", "end"]


class Database(Protocol):
    def is_in_place(self) -> bool: ...
    def wait_at_most(self, seconds: float | None) -> None: ...
    def close(self) -> None: ...


D = TypeVar("D", bound=Database)


class DiskThread(Generic[D]):
    """`open_database` runs in the thread at the first use, and again when the file was deleted or replaced.
    `tend` is called with it every `pause()` seconds; None is a pause until there is work.
    """

    def __init__(
        self,
        name: str,
        open_database: Callable[[], D],
        *,
        tend: Callable[[D], None],
        pause: Callable[[], float | None],
    ) -> None:
        self._name = name
        self._open_database = open_database
        self._tend = tend
        self._pause = pause
        self._queue: queue.SimpleQueue[tuple[Callable[[D], Any], Future[Any]] | Sign] = queue.SimpleQueue()
        self._tend_at = math.inf
        self._thread: threading.Thread | None = None
        self._database: D | None = None
        self._refusal: StorageError | None = None
        self._rests_until = 0.0
        self._give_up_at = 0.0
        self._over: Future[StorageError | None] = Future()

    @property
    def has_begun(self) -> bool:
        return self._thread is not None

    def submit(self, work: Callable[[D], Any]) -> Future[Any]:
        """Do it after all that was submitted before. The future raises what it raises."""
        self._start()
        future: Future[Any] = Future()
        self._queue.put((work, future))
        return future

    def tend_within(self, seconds: float) -> None:
        """Tend so soon, and no sooner: once for all that ask until then. What the disk refuses is still tried
        again in its own time.
        """
        if self._tend_at == math.inf:
            self._tend_at = time.monotonic() + seconds
            self._start()
            self._queue.put("wake")

    async def aclose(self, within_s: float) -> StorageError | None:
        """Do what is queued, and tend; while another program's lock is in the way, for `within_s` seconds.

        Returns what the disk still refuses with, None where nothing is left to do.
        """
        if self._thread is None:
            return None
        self._give_up_at = time.monotonic() + within_s
        self._queue.put("end")
        await asyncio.wait([asyncio.wrap_future(self._over)], timeout=within_s + 2 * SLOW_S)
        if self._over.done():
            return self._over.result()
        return self._refusal or DatabaseLocked("The disk does not answer.")

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"edgecloud-{self._name}", daemon=True)
            self._thread.start()

    # ------------------------------------------------------------------------------------------ in the thread

    def _run(self) -> None:
        tended_at, refusal = time.monotonic(), None
        while True:
            pause_s = self._pause()
            if pause_s is not None and refusal is not None:
                pause_s = max(pause_s, RETRY_S)
            tend_at = math.inf if pause_s is None else tended_at + pause_s
            if refusal is None:
                tend_at = min(tend_at, self._tend_at)
            left_s = max(0.0, tend_at - time.monotonic())
            if not left_s:
                # Also where there is always something queued. Whoever asks from here on is not forgotten.
                self._tend_at = math.inf
                refusal, tended_at = self._tended(), time.monotonic()
            try:
                item = self._queue.get(timeout=None if left_s == math.inf else left_s)
            except queue.Empty:
                continue
            if item == "end":
                break
            if item != "wake":
                self._do(*item)
        self._over.set_result(self._end())

    def _end(self) -> StorageError | None:
        while True:
            self._rests_until = 0.0
            if self._database is not None:
                self._database.wait_at_most(IMPATIENT_S)
            refusal = self._tended() if self._pause() is not None else None
            if not isinstance(refusal, DatabaseLocked) or time.monotonic() >= self._give_up_at:
                break
            time.sleep(LAST_RETRY_S)
        if self._database is not None:
            with suppress(StorageError):
                self._database.close()
        return refusal

    def _tended(self) -> StorageError | None:
        """What the disk refused it with."""
        done: Future[Any] = Future()
        self._do(self._tend, done)
        error = done.exception()
        return error if isinstance(error, StorageError) else None

    def _do(self, work: Callable[[D], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work(self._opened())
            if self._refusal is not None and self._database is not None:
                self._refusal = None
                self._database.wait_at_most(None)
            future.set_result(result)
        except EdgeCloudError as error:
            # First of all: somebody waits for it, whatever becomes of the log.
            future.set_exception(error)
            if isinstance(error, StorageError) and error is not self._refusal:
                log.warning("%s: %s", self._name, error.message)
                self._refusal = error
                if self._database is not None:
                    self._database.wait_at_most(IMPATIENT_S)
        except Exception as error:
            future.set_exception(error)
            log.exception("%s", self._name)

    def _opened(self) -> D:
        if self._database is not None and not self._database.is_in_place():
            self._database.close()
            self._database = None
        if self._database is None:
            started = time.monotonic()
            if self._refusal is not None and started < self._rests_until:
                raise self._refusal
            try:
                self._database = self._open_database()
            except StorageError:
                if time.monotonic() - started > SLOW_S:
                    self._rests_until = time.monotonic() + REST_S
                raise
        return self._database
