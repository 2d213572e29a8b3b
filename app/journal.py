"""The gateway's pen: history, written in a thread of its own.

The prompt is journalled before the work and the text while it streams, a slice every quarter of a second.
Ends that nobody waits for are written a moment later, all of that moment in one transaction.
Where another program holds the file, nobody waits long for it: what is to be written, be it a prompt, stays
in memory and is written once the file is free; so is what a full disk refused in the middle of an answer. A
history that can't be written costs no answer, and the user is told once. What the disk still refuses when the
program ends is lost, and that is told too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from edgecloud.errors import EdgeCloudError, StorageError
from edgecloud.storage import DatabaseLocked
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

from .chats import Seam, Turn, new_turn, prompt_of
from .disk_thread import DiskThread

if TYPE_CHECKING:
    from .history import History

log = logging.getLogger(__name__)

BEGIN_S = 1.0
"""How long the work waits for its prompt to be written. Longer than that, another program has the file."""
MOST_LATE = 256
"""Prompts that are kept in memory while it does."""
FLUSH_S = 0.25
LINGER_S = 0.1
"""How long an end that nobody waits for may wait for others: writing one takes the interpreter from those who
are being answered.
"""
HEARTBEAT_S = 5.0
TIDY_S = 3600.0
CLOSE_WAIT_S = 30.0
"""How long the end of the program waits for another's lock. Whoever minds can interrupt it."""
Status = Literal["complete", "interrupted", "failed"]

T = TypeVar("T")


class Ending(NamedTuple):
    """How an answer ended."""

    receipt: Receipt | None
    status: Status
    error: str | None


class OpenTurn:
    """One answer being written. Deltas gather here until the thread takes them, then comes the `ending`.

    `prompt` is what asks for it, until that is written.
    """

    def __init__(self, turn: Turn, prompt: ChatRequest) -> None:
        self.turn = turn
        self.prompt: ChatRequest | None = prompt
        self.ending: Ending | None = None
        self._lock = threading.Lock()
        self._text: dict[int, list[str]] = {}
        self._reasoning: dict[int, list[str]] = {}
        self._calls: dict[int, dict[int, ToolCall]] = {}
        # What the caller wrote of the answer, if it began it, counts too.
        self._num_chars = len(prompt_of(prompt)[1])
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


class Beginning(NamedTuple):
    """A prompt that is being written, and the end of that."""

    open_turn: OpenTurn
    writing: Future[None]


class Journal:
    """History behind a queue. `open_history` runs in the thread at the first use, `tidy` every hour after."""

    def __init__(
        self, open_history: Callable[[], History], tidy: Callable[[History], None] | None = None
    ) -> None:
        # In the order of their prompts: one may go on from another.
        self._open: dict[OpenTurn, None] = {}
        self._thread: DiskThread[History] = DiskThread(
            "journal", open_history, tend=self._tend, pause=self._pause
        )
        self._tidy = tidy
        self._tidy_at = time.monotonic() + TIDY_S
        self._beat_at = 0.0
        self._told = False

    def prepare(self) -> None:
        """Open the history now: what crashes left is put right, what is too old goes, asked or not."""
        opened = self._thread.submit(lambda history: None)
        opened.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def begin(self, request: ChatRequest) -> tuple[OpenTurn | None, str | None]:
        """Journal the prompt. Returns the turn, or None with the sentence to tell the user (only the first
        time).

        Of a prompt that has to wait for another program's lock, the turn is returned all the same: it is
        written when that is gone.
        """
        return await self.begun(self.start(request))

    def start(self, request: ChatRequest) -> Beginning:
        """Have the prompt written while something else is done; `begun` must be called in the end."""
        open_turn = OpenTurn(new_turn(request), request)
        goes_on = request.chat_id is not None or any(each.role == "assistant" for each in request.messages)

        def write(history: History) -> None:
            if goes_on:
                self._catch_up(history)  # with the answer that it goes on from
            if open_turn.prompt is not None:
                open_turn.turn = history.begin(request, open_turn.turn)
                open_turn.prompt = None
            # Here and not in the caller: the thread must know of it before it goes back to sleep.
            self._open[open_turn] = None

        return Beginning(open_turn, self._thread.submit(write))

    async def begun(self, beginning: Beginning) -> tuple[OpenTurn | None, str | None]:
        """Wait until the prompt is written, and return what `begin` does."""
        open_turn, writing = beginning
        if not writing.done():
            waiting = asyncio.wrap_future(writing)
            # Who does not wait for it finds in the log what went wrong.
            waiting.add_done_callback(lambda future: future.cancelled() or future.exception())
            try:
                # What was typed is written even if the caller leaves at once.
                await asyncio.wait([waiting], timeout=BEGIN_S)
            except asyncio.CancelledError:
                # The caller left while the prompt was being written: nobody else would end this turn.
                writing.add_done_callback(lambda written: self._abandon(open_turn, written))
                raise
        error = writing.exception() if writing.done() else None
        if writing.done() and error is None:
            return open_turn, None
        num_late = sum(each.prompt is not None for each in list(self._open))
        if isinstance(error, DatabaseLocked | None) and num_late < MOST_LATE:
            self._open[open_turn] = None
            self._thread.tend_within(FLUSH_S)
            return open_turn, None
        return None, self._tell(error or DatabaseLocked("The history is being written to."))

    async def finish(
        self,
        open_turn: OpenTurn,
        receipt: Receipt | None,
        status: Status,
        error: str | None = None,
        *,
        wait_s: float = 1.0,
    ) -> str | None:
        """Write the rest of the answer and how it ended; waits at most `wait_s` seconds for the disk. Without
        any it is written soon, and the log says what went wrong.

        Returns the sentence to tell the user (only the first time) if the disk refused.
        """

        open_turn.ending = Ending(receipt, status, error)
        if not wait_s:
            self._thread.tend_within(LINGER_S)
            return None
        writing = self._thread.submit(lambda history: self._write(history, [open_turn]))
        written = asyncio.wrap_future(writing)
        # Who does not wait for it finds in the log what went wrong.
        written.add_done_callback(lambda future: future.cancelled() or future.exception())
        await asyncio.wait([written], timeout=wait_s)
        failure = written.exception() if written.done() and not written.cancelled() else None
        return self._tell(failure) if isinstance(failure, StorageError) else None

    async def read(self, work: Callable[[History], T]) -> T:
        """What `work` finds in history, after all that was written before. Raises what it raises."""

        def caught_up(history: History) -> T:
            self._catch_up(history)
            return work(history)

        return await asyncio.wrap_future(self._thread.submit(caught_up))

    @property
    def is_behind(self) -> bool:
        """Whether something of an answer is still to be written."""
        return bool(self._open)

    async def aclose(self) -> str:
        """Write what is left, for `CLOSE_WAIT_S` seconds where another program holds the file, and stop.

        Returns what to tell the user of what is lost; empty if nothing is.
        """
        refusal = await self._thread.aclose(CLOSE_WAIT_S)
        if refusal is None or not self._open:
            return ""
        num_prompts = sum(each.prompt is not None for each in self._open)
        num_ends = len(self._open) - num_prompts
        lost = []
        if num_prompts:
            lost.append("a question" if num_prompts == 1 else f"{num_prompts} questions")
        if num_ends:
            lost.append("the end of an answer" if num_ends == 1 else f"the ends of {num_ends} answers")
        return f"The history lacks {' and '.join(lost)}: {refusal.message}"

    # ------------------------------------------------------------------------------------------------- inside

    def _tell(self, error: BaseException) -> str | None:
        told, self._told = self._told, True
        if told:
            return None
        if isinstance(error, EdgeCloudError):
            return error.message
        return f"History could not be written ({type(error).__name__})."

    def _abandon(self, open_turn: OpenTurn, begun: Future[None]) -> None:
        if begun.cancelled() or begun.exception() is not None:
            return
        open_turn.ending = Ending(None, "interrupted", None)
        self._thread.submit(lambda history: self._write(history, [open_turn]))

    def _pause(self) -> float | None:
        if self._open:
            return FLUSH_S
        return None if self._tidy is None else max(0.0, self._tidy_at - time.monotonic())

    def _tend(self, history: History) -> None:
        """Write what has gathered; raises at the first refusal, since each more would wait as long."""
        self._write(history, list(self._open))
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + HEARTBEAT_S
            for open_turn in list(self._open):
                history.heartbeat(open_turn.turn)
        if self._tidy is not None and time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_S
            self._tidy(history)

    def _catch_up(self, history: History) -> None:
        """Write the ends that wait; what the disk refuses of them is tried again when it is time."""
        with suppress(StorageError):
            self._write(history, [each for each in list(self._open) if each.ending is not None])

    def _write(self, history: History, open_turns: Sequence[OpenTurn]) -> None:
        """Write what has gathered of these, and the ends that there are, in one transaction; what cannot be
        written stays for later.
        """
        # The end is looked for first: whatever was said before it has been added by then.
        taken = [(each, each.ending, each.take()) for each in open_turns if each in self._open]
        if not any(ending or slices or each.prompt for each, ending, slices in taken):
            return
        try:
            with history.together():
                for open_turn, ending, slices in taken:
                    self._write_one(history, open_turn, ending, slices)
        except BaseException:
            for open_turn, _, slices in taken:
                open_turn.put_back(slices)
            raise
        for open_turn, ending, _ in taken:
            open_turn.prompt = None
            if ending is not None:
                self._open.pop(open_turn, None)

    def _write_one(
        self, history: History, open_turn: OpenTurn, ending: Ending | None, slices: dict[int, tuple[str, str]]
    ) -> None:
        try:
            if open_turn.prompt is not None:
                open_turn.turn = history.begin(open_turn.prompt, open_turn.turn)
            if ending is None:
                for index, slice_ in slices.items():
                    history.append(open_turn.turn, index, *slice_)
                return
            history.finish(
                open_turn.turn,
                ending.receipt,
                open_turn.reasons,
                open_turn.tool_calls(),
                ending.status,
                ending.error,
                open_turn.seams,
                slices,
            )
        except StorageError:
            raise
        except Exception:
            # A bug that would be met again: the others of this transaction must not go with it.
            log.exception("an answer could not be written")
            self._open.pop(open_turn, None)
