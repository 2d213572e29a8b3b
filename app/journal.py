"""The gateway's pen: one thread that writes history, so that a slow or locked disk never stalls a stream.

The prompt is journalled before the work and the text while it streams, a slice every quarter of a second.
When history cannot be written the answer goes on without it, and the user is told once; what a locked or full
disk refused in the middle of an answer is kept in memory and written as soon as it can be.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from edgecloud.errors import StorageError
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Event,
    Notice,
    ReasoningDelta,
    Receipt,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)

from .chats import Seam, prompt_of

if TYPE_CHECKING:
    from .history import History, Turn

log = logging.getLogger(__name__)

FLUSH_S = 0.25
RETRY_S = 2.0
HEARTBEAT_S = 5.0
CLOSE_WAIT_S = 10.0
Status = Literal["complete", "interrupted", "failed"]

T = TypeVar("T")


class Ending(NamedTuple):
    """How an answer ended."""

    receipt: Receipt | None
    status: Status
    error: str | None


class OpenTurn:
    """One answer being written. Deltas gather here until the thread takes them, then comes the `ending`.

    `num_chars` is how long what the caller wrote of the answer is, if it began it.
    """

    def __init__(self, turn: Turn, num_chars: int = 0) -> None:
        self.turn = turn
        self.ending: Ending | None = None
        self._lock = threading.Lock()
        self._text: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}
        self._calls: dict[int, dict[int, ToolCall]] = {}
        self._num_chars = num_chars
        self.reasons: dict[int, str] = {}
        self.seams: list[Seam] = []

    def add(self, event: Event) -> None:
        """Note one event of the stream."""
        with self._lock:
            match event:
                case TextDelta():
                    self._text.setdefault(event.index, []).append(event.text)
                    self._num_chars += len(event.text) if event.index == 0 else 0
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
                case Notice(kind="rerouted" | "continued" | "truncated"):
                    self.seams.append(Seam(self._num_chars, event.text))

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

    def put_back(self, slices: dict[int, tuple[str, str]]) -> None:
        """Keep what was taken and could not be written, before what came meanwhile."""
        with self._lock:
            for index, (text, reasoning) in slices.items():
                self._text.setdefault(index, []).insert(0, text)
                self._reasoning.setdefault(index, []).insert(0, reasoning)

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
            open_turn = OpenTurn(history.begin(request), len(prompt_of(request)[1]))
            # Here and not in the caller: the thread must know of it before it goes back to sleep.
            self._open.add(open_turn)
            return open_turn

        future = self._submit(write)
        try:
            # What was typed is written even if the caller leaves at once.
            return await asyncio.shield(asyncio.wrap_future(future)), None
        except asyncio.CancelledError:
            # The caller left while the prompt was being written: nobody else would end this turn.
            future.add_done_callback(self._abandon)
            raise
        except StorageError as error:
            return None, self._tell(error.message)

    async def finish(
        self,
        open_turn: OpenTurn,
        receipt: Receipt | None,
        status: Status,
        error: str | None = None,
        *,
        wait_s: float = 1.0,
    ) -> str | None:
        """Write the rest of the answer and how it ended; waits at most `wait_s` seconds for the disk.

        Returns the sentence to tell the user (only the first time) if the disk refused.
        """

        open_turn.ending = Ending(receipt, status, error)
        written = asyncio.wrap_future(self._submit(lambda history: self._write(history, open_turn)))
        # Who does not wait for it finds in the log what went wrong.
        written.add_done_callback(lambda future: future.cancelled() or future.exception())
        await asyncio.wait([written], timeout=wait_s)
        failure = written.exception() if written.done() and not written.cancelled() else None
        return self._tell(failure.message) if isinstance(failure, StorageError) else None

    async def read(self, work: Callable[[History], T]) -> T:
        """What `work` finds in history, after all that was written before. Raises `StorageError`."""
        found: T = await asyncio.wrap_future(self._submit(work))
        return found

    async def aclose(self) -> None:
        """Write what is queued and stop the thread."""
        if self._thread is None:
            return
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_WAIT_S)

    # ------------------------------------------------------------------------------------------------- inside

    def _tell(self, sentence: str) -> str | None:
        told, self._told = self._told, True
        return None if told else sentence

    def _abandon(self, begun: Future[OpenTurn]) -> None:
        if begun.cancelled() or begun.exception() is not None:
            return
        open_turn = begun.result()
        open_turn.ending = Ending(None, "interrupted", None)
        self._submit(lambda history: self._write(history, open_turn))

    def _submit(self, work: Callable[[History], Any]) -> Future[Any]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="edgecloud-journal", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._queue.put((work, future))
        return future

    def _run(self) -> None:
        flush_at = last_beat = time.monotonic()
        while True:
            try:
                item = self._queue.get(timeout=FLUSH_S if self._open else None)
            except queue.Empty:
                item = (lambda history: None, Future())
            if item is None:
                break
            self._work(*item)
            now = time.monotonic()
            if now >= flush_at:
                pause_s = FLUSH_S if self._each_open(self._write) else RETRY_S
                flush_at = time.monotonic() + pause_s
            if now - last_beat >= HEARTBEAT_S:
                last_beat = now
                self._each_open(lambda history, open_turn: history.heartbeat(open_turn.turn))
        self._each_open(self._write)
        if self._history is not None:
            self._history.close()

    def _work(self, work: Callable[[History], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if self._history is not None and not self._history.is_in_place():
                # Deleted or replaced under our hands: what is written to the old file is gone.
                self._history.close()
                self._history = None
            if self._history is None:
                self._history = self._open_history()
            future.set_result(work(self._history))
        except StorageError as error:
            # First of all: somebody waits for it, whatever becomes of the log.
            future.set_exception(error)
            log.warning("history: %s", error.message)
        except Exception as error:
            future.set_exception(StorageError(f"History could not be written ({type(error).__name__})."))
            log.exception("history could not be written")

    def _each_open(self, work: Callable[[History, OpenTurn], None]) -> bool:
        """Do it for every open turn; False at the first that fails, since each more would wait as long."""
        for open_turn in list(self._open):
            done: Future[Any] = Future()
            self._work(lambda history, turn=open_turn: work(history, turn), done)  # type: ignore[misc]
            if done.exception() is not None:
                return False
        return True

    def _write(self, history: History, open_turn: OpenTurn) -> None:
        """Write what has gathered, and the end if there is one; what cannot be written stays for later."""
        if open_turn not in self._open:
            return
        slices = open_turn.take()
        try:
            while slices:
                index = min(slices)
                history.append(open_turn.turn, index, *slices[index])
                del slices[index]
            if open_turn.ending is None:
                return
            receipt, status, error = open_turn.ending
            history.finish(
                open_turn.turn,
                receipt,
                open_turn.reasons,
                open_turn.tool_calls(),
                status,
                error,
                open_turn.seams,
            )
        except StorageError:
            open_turn.put_back(slices)
            raise
        except Exception:
            self._open.discard(open_turn)
            raise
        self._open.discard(open_turn)
