"""One answer while it comes: what has arrived, how it stands, and how fast.

Times are taken when an event arrives and not when it is drawn: drawing may be late.
"""

from __future__ import annotations

from edgecloud.types import (
    ChoiceDone,
    Event,
    Finish,
    Notice,
    ReasoningDelta,
    Receipt,
    Start,
    TextDelta,
    ToolCall,
    ToolCallDelta,
)

from ...chats import Seam

_SEAMS = ("rerouted", "continued", "truncated")


class Turn:
    """Takes the events of one request, the first choice's. `began` and `now` are seconds of one clock."""

    def __init__(self, began: float, prefix: str = "", model: str = "auto") -> None:
        self.began = began
        self.model = model
        """The name that was asked."""
        self.waits_for = ""
        """What it waits for before anything was heard, if anybody knows."""
        self.text = prefix
        self.reasoning = ""
        self.calls: dict[int, ToolCall] = {}
        self.seams: list[Seam] = []
        self.status = ""
        self.warning: str | None = None
        self.start: Start | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.num_tokens = 0
        self.finish_reason: str | None = None
        self.receipt: Receipt | None = None
        self.chat_id: str | None = None
        self.message_id: str | None = None

    def see(self, event: Event, now: float) -> None:
        """Take in one event."""
        match event:
            case Start():
                self.start, self.status = event, ""
            case TextDelta(index=0):
                self.text += event.text
                self._count(event.num_tokens, now)
            case ReasoningDelta(index=0):
                self.reasoning += event.text
                self._count(event.num_tokens, now)
            case ToolCallDelta(index=0):
                call = self.calls.get(event.call_index, ToolCall("", "", ""))
                self.calls[event.call_index] = ToolCall(
                    event.id or call.id, event.name or call.name, call.arguments + event.arguments
                )
                self._count(1, now)
            case ChoiceDone(index=0):
                self.finish_reason = event.reason
            case Notice():
                if event.kind in _SEAMS:
                    self.seams.append(Seam(len(self.text), event.text))
                elif event.kind in ("history", "storage"):
                    self.warning = event.text
                else:
                    self.status = event.text
            case Finish():
                self.receipt = event.receipt
                self.chat_id, self.message_id = event.chat_id, event.message_id

    def _count(self, num_tokens: int, now: float) -> None:
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        self.num_tokens += num_tokens

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(call for _, call in sorted(self.calls.items()))

    @property
    def tokens_per_s(self) -> float | None:
        """Of the tokens after the first; None before there is a second."""
        if self.first_token_at is None or self.last_token_at is None or self.num_tokens < 2:
            return None
        seconds = self.last_token_at - self.first_token_at
        return (self.num_tokens - 1) / seconds if seconds > 0 else None

    @property
    def who(self) -> str:
        """The model that answers, and of another machine's also which one: it may cost money."""
        if self.start is None:
            return "the model"
        is_here = self.start.engine in ("local", self.start.model)
        return self.start.model if is_here else f"{self.start.model} on {self.start.engine}"

    def known(self) -> list[str]:
        """What is known while it comes of who answers and why: a sentence a line."""
        if self.start is None:
            return [
                f"Nobody has begun to answer yet: {self.status or self.waits_for or 'it waits its turn'}."
            ]
        because = f"because: {self.start.reason}" if self.start.reason else ""
        read = f"{self.start.prompt_tokens:,} tokens were read, {self.num_tokens:,} came so far."
        return [line for line in (f"{self.who} is answering now.", because, read) if line]

    def state(self, now: float) -> str:
        """What is going on, in a few words and with the seconds: waiting is never a bare spinner."""
        if self.first_token_at is None:
            if self.status:
                doing = self.status
            elif self.start is None:
                doing = self.waits_for or "waiting for the model"
            else:
                doing = f"{self.who} reads {self.start.prompt_tokens:,} tokens"
            return f"{doing} · {now - self.began:.0f} s"
        doing = "thinks" if self.reasoning and not self.text else "answers"
        speed = self.tokens_per_s
        pace = f" · {speed:.0f} tokens/s" if speed is not None else ""
        return f"{self.who} {doing} · {self.num_tokens:,} tokens{pace}"
