"""The gateway's pen: one thread that writes history, so that a slow or locked disk never stalls a stream.

The prompt is journalled before the work and the text while it streams, a slice every quarter of a second.
When history cannot be written the answer goes on without it, and the user is told once.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

from edgecloud.errors import StorageError
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Event,
    ReasoningDelta,
    Receipt,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)

if TYPE_CHECKING:
    from .history import History, Turn

log = logging.getLogger(__name__)

FLUSH_S = 0.25
HEARTBEAT_S = 5.0
CLOSE_WAIT_S = 10.0
Status = Literal["complete", "interrupted", "failed"]


class OpenTurn:
    """One answer being written. Deltas gather here until the thread takes them."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._lock = threading.Lock()
        self._text: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}
        self._calls: dict[int, dict[int, ToolCall]] = {}
        self.reasons: dict[int, str] = {}

    def add(self, event: Event) -> None:
        """Note one event of the stream."""
        with self._lock:
            match event:
                case TextDelta():
                    self._text.setdefault(event.index, []).append(event.text)
                case ReasoningDelta():
                    self._reasoning.setdefault(event.index, []).append(event.text)
                case ToolCallDelta():
                    calls = self._calls.setdefault(event.index, {})
                    call = calls.get(event.call_index, ToolCall("", "", ""))
                    calls[event.call_index] = ToolCall(
                        event.id or call.id, event.name or call.name, call.arguments + event.arguments
                    )
                case ChoiceDone():
                    self.reasons[event.index] = event.reason

    def take(self) -> dict[int, tuple[str, str]]:
        """What has gathered since the last take: choice index to (text, reasoning)."""
        with self._lock:
            indexes = self._text.keys() | self._reasoning.keys()
            slices = {
                i: ("".join(self._text.get(i, ())), "".join(self._reasoning.get(i, ()))) for i in indexes
            }
            self._text.clear()
            self._reasoning.clear()
            return slices

    def tool_calls(self) -> dict[int, tuple[ToolCall, ...]]:
        with self._lock:
            return {i: tuple(call for _, call in sorted(calls.items())) for i, calls in self._calls.items()}


class Journal:
    """History behind a queue. `open_history` runs in the thread at the first use."""

    def __init__(self, open_history: Callable[[], History]) -> None:
        self._open_history = open_history
        self._history: History | None = None
        self._queue: queue.SimpleQueue[tuple[Callable[[History], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._open: set[OpenTurn] = set()
        self._thread: threading.Thread | None = None
        self._told = False

    async def begin(self, request: ChatRequest) -> tuple[OpenTurn | None, str | None]:
        """Journal the prompt. Returns the turn, or None with the sentence to tell the user (only the first
        time).
        """

        def write(history: History) -> OpenTurn:
            open_turn = OpenTurn(history.begin(request))
            # Here and not in the caller: the thread must know of it before it goes back to sleep.
            self._open.add(open_turn)
            return open_turn

        future = self._submit(write)
        try:
            return await asyncio.wrap_future(future), None
        except asyncio.CancelledError:
            # The caller left while the prompt was being written: nobody else would end this turn.
            future.add_done_callback(self._abandon)
            raise
        except StorageError as error:
            told, self._told = self._told, True
            return None, None if told else error.message

    async def finish(
        self,
        open_turn: OpenTurn,
        receipt: Receipt | None,
        status: Status,
        error: str | None = None,
        *,
        wait_s: float = 1.0,
    ) -> None:
        """Write the rest of the answer and how it ended; waits at most `wait_s` seconds for the disk."""

        def write(history: History) -> None:
            self._open.discard(open_turn)
            self._flush(history, open_turn)
            history.finish(open_turn.turn, receipt, open_turn.reasons, open_turn.tool_calls(), status, error)

        written = asyncio.wrap_future(self._submit(write))
        # What went wrong is in the log, and the answer is already with the user.
        written.add_done_callback(lambda future: future.cancelled() or future.exception())
        await asyncio.wait([written], timeout=wait_s)

    async def aclose(self) -> None:
        """Write what is queued and stop the thread."""
        if self._thread is None:
            return
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_WAIT_S)

    # ------------------------------------------------------------------------------------------------- inside

    def _abandon(self, begun: Future[OpenTurn]) -> None:
        if begun.cancelled() or begun.exception() is not None:
            return
        open_turn = begun.result()
        self._open.discard(open_turn)
        self._submit(lambda history: history.finish(open_turn.turn, None, {}, {}, "interrupted"))

    def _submit(self, work: Callable[[History], Any]) -> Future[Any]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="edgecloud-journal", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._queue.put((work, future))
        return future

    def _run(self) -> None:
        last_flush = last_beat = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=FLUSH_S if self._open else None)
            except queue.Empty:
                item = (lambda history: None, Future())
            if item is None:
                break
            self._work(*item)
            now = time.monotonic()
            if now - last_flush >= FLUSH_S:
                last_flush = now
                self._each_open(self._flush)
            if now - last_beat >= HEARTBEAT_S:
                last_beat = now
                self._each_open(lambda history, open_turn: history.heartbeat(open_turn.turn))
        if self._history is not None:
            self._history.close()

    def _work(self, work: Callable[[History], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if self._history is None:
                self._history = self._open_history()
            future.set_result(work(self._history))
        except StorageError as error:
            log.warning("history: %s", error.message)
            future.set_exception(error)
        except Exception as error:
            log.exception("history could not be written")
            future.set_exception(StorageError(f"History could not be written ({type(error).__name__})."))

    def _each_open(self, work: Callable[[History, OpenTurn], None]) -> None:
        for open_turn in list(self._open):
            self._work(lambda history, turn=open_turn: work(history, turn), Future())  # type: ignore[misc]

    @staticmethod
    def _flush(history: History, open_turn: OpenTurn) -> None:
        for index, (text, reasoning) in open_turn.take().items():
            history.append(open_turn.turn, index, text, reasoning)
