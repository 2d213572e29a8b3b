"""One choice's way from token bytes to events: characters, then stop strings, then reasoning and tool calls.

A token's logprob goes with the delta that holds the token's first character. A token wholly inside a stop
string or inside markup (`<think>`, a tool call) has no text in the answer, and its logprob is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from edgecloud.text import StopMatcher, Utf8Stream
from edgecloud.types import (
    ChoiceDone,
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)

Piece = TextDelta | ReasoningDelta | ToolCallDelta


class OutputParser(Protocol):
    """Splits an answer's text, as it arrives, into text, reasoning and tool calls; leaves `index` at 0."""

    @property
    def made_calls(self) -> bool:
        """Whether a tool call has come out."""

    @property
    def num_held(self) -> int:
        """Characters fed that are still held back, because they may be the start of markup."""

    def feed(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """What was held back. A call that never became one comes out as the text it was."""


class PlainText:
    """The parser of an answer with no markup in it."""

    made_calls = False
    num_held = 0

    def feed(self, text: str) -> list[Piece]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class _Token(NamedTuple):
    start: int
    logprob: TokenLogprob | None


class ChoiceOutput:
    """Turns one choice's tokens into deltas. Feed with `push`, look at `stopped`, end with `finish`."""

    def __init__(
        self, index: int, *, stops: tuple[str, ...] = (), parser: OutputParser | None = None
    ) -> None:
        self.index = index
        self.stopped: str | None = None
        self._utf8 = Utf8Stream()
        self._matcher = StopMatcher(stops) if any(stops) else None
        self._parser = None if isinstance(parser, PlainText) else parser
        self._direct = self._matcher is None and self._parser is None
        self._tokens: deque[_Token] = deque()  # tokens whose text has not come out yet
        self._num_read = 0  # characters decoded
        self._num_shown = 0  # characters past the stop matcher
        self._recent = ""  # what the parser was given since the first waiting token
        self._done = False

    def push(self, token_bytes: bytes, logprob: TokenLogprob | None = None) -> list[Delta]:
        """The deltas this token makes, often none while text is held back. Nothing after a stop."""
        if self.stopped is not None or self._done:
            return []
        text = self._utf8.feed(token_bytes)
        if self._direct and text and not self._tokens:
            return [TextDelta(text, self.index, () if logprob is None else (logprob,))]
        self._tokens.append(_Token(self._num_read, logprob))
        return self._advance(text) if text else []

    def watch_for(self, stops: tuple[str, ...]) -> None:
        """From the next token on, end at one of these strings; in what came before they are only text."""
        if any(stops) and self._matcher is None:
            self._matcher = StopMatcher(stops)
            self._direct = False

    def finish(self, reason: FinishReason) -> list[Delta]:
        """The held text and the one `ChoiceDone`; a second call gives nothing.

        The reason becomes 'stop' when a stop string ended the choice and 'tool_calls' when calls were made,
        but stays 'length' when the limit cut it: the last call may be incomplete then.
        """
        if self._done:
            return []
        deltas: list[Delta] = []
        if self.stopped is None and reason != "length":
            # What the limit cut is no broken character: the rest of it was never drawn.
            deltas += self._advance(self._utf8.finish())
        if self.stopped is None and self._matcher is not None:
            deltas += self._show(self._matcher.flush())
        if self._parser is not None:
            deltas += self._account(self._parser.finish())
            if self._parser.made_calls and reason != "length":
                reason = "tool_calls"
        if self.stopped is not None and reason == "length":
            reason = "stop"
        self._done = True
        deltas.append(ChoiceDone(self.index, reason, self.stopped))
        return deltas

    def _advance(self, text: str) -> list[Delta]:
        self._num_read += len(text)
        if self._matcher is not None:
            text, self.stopped = self._matcher.feed(text)
        return self._show(text)

    def _show(self, text: str) -> list[Delta]:
        if not text:
            return []
        self._num_shown += len(text)
        if self._parser is None:
            return [self._with_tokens(TextDelta(text), self._num_shown - len(text), self._num_shown)]
        self._recent += text
        return self._account(self._parser.feed(text))

    def _account(self, pieces: Sequence[Piece]) -> list[Delta]:
        """Give each piece its index, its tokens and its logprobs.

        A parser drops markup, so where a piece stood is found again, from the right, in the raw text read so
        far.
        """
        if not pieces or self._parser is None:
            return []
        offset = self._num_shown - len(self._recent)
        decided = len(self._recent) - self._parser.num_held
        spans: list[tuple[int, int]] = []
        end = decided
        for piece in reversed(pieces):
            text = piece.arguments if isinstance(piece, ToolCallDelta) else piece.text
            at = self._recent.rfind(text, 0, end)
            start, end = (at, at + len(text)) if at >= 0 else (0, end)
            spans.append((offset + start, offset + end))
            end = start
        deltas = [
            self._with_tokens(piece, start, end)
            for piece, (start, end) in zip(pieces, reversed(spans), strict=True)
        ]
        waiting_from = self._tokens[0].start if self._tokens else offset + decided
        self._recent = self._recent[max(0, min(waiting_from - offset, decided)) :]
        return deltas

    def _with_tokens(self, piece: Piece, start: int, end: int) -> Delta:
        """The piece with the waiting tokens that begin before `end`.

        Those that end before `start` were markup: they are counted, and their logprobs dropped.
        """
        taken: list[_Token] = []
        while self._tokens and self._tokens[0].start < end:
            taken.append(self._tokens.popleft())
        if isinstance(piece, ToolCallDelta):
            return replace(piece, index=self.index)
        if isinstance(piece, ReasoningDelta):
            return ReasoningDelta(piece.text, self.index, len(taken))
        next_starts = [*(token.start for token in taken[1:]), end]
        logprobs = tuple(
            token.logprob
            for token, token_end in zip(taken, next_starts, strict=False)
            if token.logprob is not None and (token_end > start or token.start >= start)
        )
        return TextDelta(piece.text, self.index, logprobs, len(taken))
