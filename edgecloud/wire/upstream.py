"""Reads the answers of other OpenAI-compatible servers: vLLM, SGLang, llama-server, Ollama, hosted APIs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from edgecloud.errors import UpstreamError
from edgecloud.types import (
    ChoiceDone,
    Done,
    EngineEvent,
    FinishReason,
    Notice,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)

from .upstream_errors import deadline_error, is_deadline, quote
from .upstream_values import count, mapping, read_notices, read_timings, read_usage, sequence, string

_LENGTH = ("length", "max_tokens", "max_output_tokens")
_FAILED = ("error", "abort", "cancelled")


class StreamDecoder(ABC):
    """Turns the chunks of one upstream answer, or its one whole body, into events. `n` choices are expected.

    Emits no `Start`: what it holds is known to the engine that opened the stream.
    """

    def __init__(self, n: int = 1) -> None:
        self._open = set(range(n))
        self._usage: Usage | None = None
        self._timings: Timings | None = None
        self._counted = 0
        self._called: set[int] = set()
        self._waiting: dict[int, list[TokenLogprob]] = {}

    def feed(self, chunk: Any) -> list[EngineEvent]:
        """Events of one decoded chunk. Raises `UpstreamError` for an error or what makes no sense."""
        chunk = mapping(chunk, "chunk")
        if chunk.get("error"):
            if is_deadline(chunk):
                raise deadline_error()
            raise UpstreamError(f"The upstream failed while answering: {quote(chunk)}")
        self._usage = read_usage(chunk.get("usage")) or self._usage
        self._timings = read_timings(chunk.get("timings")) or self._timings
        events: list[EngineEvent] = [*read_notices(chunk.get("edgecloud"))]
        for entry in sequence(chunk.get("choices"), "choices"):
            choice = mapping(entry, "choice")
            index = count(choice.get("index"), "index")
            # Some servers repeat the last chunk with the usage in it.
            if index in self._open:
                events += self._choice(index, choice)
        return events

    @property
    def is_whole(self) -> bool:
        """Whether every choice has ended: what may still come is the usage."""
        return not self._open

    def finish(self) -> list[EngineEvent]:
        """The last event, once the stream has ended. Raises `UpstreamError` if it broke off."""
        if self._open:
            raise UpstreamError("The upstream's answer broke off before it was complete.")
        usage = self._usage or Usage()
        if not usage.completion_tokens:
            usage = replace(usage, completion_tokens=self._counted)
        return [Done(usage, self._timings or Timings())]

    @abstractmethod
    def _deltas(self, index: int, choice: dict[str, Any]) -> list[EngineEvent]:
        """What one choice of a chunk adds: the routes differ in this only."""

    def joined(self, index: int, logprobs: list[TokenLogprob], has_text: bool) -> tuple[TokenLogprob, ...]:
        """The logprobs to send now: those of half a character come without text and wait for the rest."""
        all_of = self._waiting.pop(index, []) + logprobs
        if has_text:
            return tuple(all_of)
        if all_of:
            self._waiting[index] = all_of
        return ()

    def _choice(self, index: int, choice: dict[str, Any]) -> list[EngineEvent]:
        events = self._deltas(index, choice)
        for event in events:
            if isinstance(event, ToolCallDelta):
                self._called.add(index)
            elif isinstance(event, TextDelta | ReasoningDelta):
                self._counted += event.num_tokens
        reason = string(choice.get("finish_reason"), "finish_reason")
        if not reason:
            return events
        if reason in _FAILED:
            raise UpstreamError("The upstream gave up while answering.")
        self._open.discard(index)
        if reason == "content_filter":
            events.append(Notice("truncated", "The upstream's content filter ended the answer."))
        # vLLM's and SGLang's names for the stop string, or for the id of a stop token.
        stop = choice.get("stop_reason") or choice.get("matched_stop")
        ended = self._reason(index, reason)
        events.append(ChoiceDone(index, ended, stop if isinstance(stop, str) and ended == "stop" else None))
        return events

    def _reason(self, index: int, reason: str) -> FinishReason:
        if reason in _LENGTH:
            return "length"
        # Ollama and others say 'stop' after tool calls.
        return "tool_calls" if index in self._called else "stop"
