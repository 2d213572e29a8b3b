"""Splits what a reasoning model thinks from what it answers."""

from __future__ import annotations

from edgecloud.output import OutputParser, Piece, PlainText
from edgecloud.text import StopMatcher
from edgecloud.types import ReasoningDelta

OPEN, CLOSE = "<think>", "</think>"


class ReasoningParser:
    """`<think>…</think>` at the start of an answer becomes reasoning, the rest goes to the `answer` parser.

    `opened` says that the prompt already ended in `<think>`. Whitespace around the thought is layout and is
    dropped. Only the start counts: a `<think>` later on is text someone asked for.
    """

    def __init__(self, answer: OutputParser | None = None, *, opened: bool = False) -> None:
        self._answer: OutputParser = answer or PlainText()
        self._thought = StopMatcher((CLOSE,)) if opened else None
        self._answering = False
        self._held = ""  # may become <think>; while thinking, whitespace that may be the thought's end
        self._begun = False  # something other than whitespace came since the last tag

    @property
    def made_calls(self) -> bool:
        return self._answer.made_calls

    @property
    def num_held(self) -> int:
        return len(self._held) + (self._thought.num_held if self._thought else 0) + self._answer.num_held

    def feed(self, text: str) -> list[Piece]:
        """What is certain of the text so far: thought, answer, calls of tools."""
        if self._answering:
            return self._feed_answer(text)
        if self._thought is not None:
            return self._feed_thought(text, self._thought)
        self._held += text
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._held = ""
            self._thought = StopMatcher((CLOSE,))
            return self._feed_thought(start[len(OPEN) :], self._thought)
        if OPEN.startswith(start):
            return []
        held, self._held = self._held, ""
        self._answering = self._begun = True
        return self._answer.feed(held)

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._thought is not None:
            tail = self._held + self._thought.flush()
            self._thought = None
            pieces += [ReasoningDelta(tail)] if tail.strip() else []
        elif self._held:
            pieces += self._answer.feed(self._held)
        self._held = ""
        return pieces + self._answer.finish()

    def _feed_thought(self, text: str, thought: StopMatcher) -> list[Piece]:
        shown, closed = thought.feed(text)
        shown = self._held + shown if self._begun else shown.lstrip()
        self._begun = self._begun or bool(shown)
        kept = shown.rstrip()
        self._held = "" if closed else shown[len(kept) :]
        pieces: list[Piece] = [ReasoningDelta(kept)] if kept else []
        if closed:
            self._thought, self._answering, self._begun = None, True, False
            pieces += self._feed_answer(thought.rest)
        return pieces

    def _feed_answer(self, text: str) -> list[Piece]:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return self._answer.feed(text) if text else []
