"""What one request has seen so far: enough for its receipt, its line in the ledger, and its continuation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from edgecloud.types import (
    Attempt,
    CacheInfo,
    ChatRequest,
    ChoiceDone,
    Done,
    EngineEvent,
    Mode,
    Notice,
    ReasoningDelta,
    Receipt,
    Start,
    TextDelta,
    Timings,
    ToolCallDelta,
    Usage,
)

if TYPE_CHECKING:
    from edgecloud.engine import Engine

    from ..router.budgets import Limit
    from ..router.decision import Decision
    from ..router.ledger import Precedent

NEXT_IN_LINE = "next in line:"
"""How the reason begins where it is not the first choice that answers."""

_NANO = 1e9


def num_tokens(event: EngineEvent) -> int:
    """Tokens of an answer that came with one event: what is counted of an answer that was stopped, since only
    `Done` says it better. A piece of a tool call does not tell how many it was; it is taken for one.
    """
    match event:
        case TextDelta() | ReasoningDelta():
            return event.num_tokens
        case ToolCallDelta():
            return 1
        case _:
            return 0


@dataclass(frozen=True, slots=True)
class Tried:
    """One engine's try. `started` is in Unix seconds, `nano` the cost; `at_least` where it was cut off before
    the engine said how much it had done. `replica` is the address asked, "" in this process.
    """

    engine: str
    replica: str
    started: float
    seconds: float
    outcome: str
    usage: Usage
    nano: int = 0
    at_least: bool = False


class Decided(Protocol):
    """A decision, and `explained`, which gives the same with what is only told of it. Either may take a
    while, and no request waits for it.
    """

    @property
    def decision(self) -> Decision: ...

    def explained(self) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Closing:
    """A request that is over, as the books need it; `decision` is None where nothing was decided, a sentence
    where nobody might be asked. `precedent` is to be kept for questions like it; what the chat of a `private`
    one was decided by is to be forgotten.
    """

    receipt: Receipt
    created: float
    door: str
    tenant: str | None
    chat_id: str | None
    outcome: str
    tried: tuple[Tried, ...]
    limits: Sequence[Limit]
    decision: Decided | str | None
    precedent: Precedent | None = None
    private: bool = False


class Run:
    """One request on its way. Whoever decides sets `reason` and `mode`; who is asked is noted in `tried`."""

    def __init__(self, request: ChatRequest) -> None:
        self.request = request
        self.chat_id = request.chat_id
        """The chat that history keeps it in, once that is known."""
        self.created = time.time()
        self.began = time.monotonic()
        self.reason = "the default model" if request.model == "auto" else "asked for by name"
        self.mode: Mode = request.mode
        self.currency = "USD"
        self.cache = CacheInfo()
        self.asked: list[Engine] = []
        """Who was asked so far, the last one last."""
        self.tried: list[Tried] = []
        self.limits: Sequence[Limit] = ()
        self.decision: Decided | str | None = None
        self.precedent: Precedent | None = None
        self.private = False
        """Whether the router found that it has to stay on this machine."""
        self.start: Start | None = None
        self._usage = Usage()
        self._num_completion = 0
        self._num_reasoning = 0
        self.timings = Timings()
        self.first_delta_s: float | None = None
        self._stretch: list[tuple[float, int]] = []
        """The first and the last moment at which this engine had answered so many tokens."""
        self._speed_begun: float | None = None
        """Tokens a second of the part before the first seam, where another engine went on."""
        self.finished = False
        self.closed = False
        """Whether its end is written: the caller may leave after that."""

    @property
    def left_s(self) -> float | None:
        """Seconds until the request's deadline, None where it has none."""
        if self.request.deadline_s is None:
            return None
        return self.request.deadline_s - (time.monotonic() - self.began)

    @property
    def nano(self) -> int:
        """What all tries together cost."""
        return sum(tried.nano for tried in self.tried)

    @property
    def usage(self) -> Usage:
        """What it has used: what was seen until the engine says what it was."""
        if self.finished:
            return self._usage
        return replace(
            self._usage, completion_tokens=self._num_completion, reasoning_tokens=self._num_reasoning
        )

    def see(self, event: EngineEvent) -> None:
        """Take in one event on its way to the caller."""
        match event:
            case Start():
                self.start = event
                self._usage = Usage(prompt_tokens=event.prompt_tokens)
                self._num_completion = self._num_reasoning = 0
                self._stretch.clear()
            case Done():
                self._usage, self.timings, self.finished = event.usage, event.timings, True
            case Notice(kind="continued"):
                if self._speed_begun is None:
                    self._speed_begun = self._speed_of_pieces()
            case Notice() | ChoiceDone():
                pass
            case _:
                passed_s = time.monotonic() - self.began
                if self.first_delta_s is None:
                    self.first_delta_s = passed_s
                number = num_tokens(event)
                self._num_completion += number
                self._num_reasoning += number * isinstance(event, ReasoningDelta)
                self._stretch[1:] = [(passed_s, self._num_completion)]

    def ended(self, outcome: str) -> None:
        """Name what ended the request, where the engine that was at it only saw that it was cut off."""
        if self.tried and self.tried[-1].outcome == "interrupted":
            self.tried[-1] = replace(self.tried[-1], outcome=outcome)

    def receipt(self) -> Receipt:
        """The receipt as it stands; its engine is "" if nobody was asked."""
        last = self.tried[-1].engine if self.tried else ""
        start = self.start
        return Receipt(
            id=self.request.id,
            engine=start.engine if start else last,
            model=start.model if start else self.request.model,
            variant=start.variant if start else "",
            mode=self.mode,
            reason=self.reason,
            attempts=tuple(Attempt(each.engine, each.outcome, each.seconds) for each in self.tried),
            cache=self.cache,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=self.usage.cached_tokens,
            completion_tokens=self.usage.completion_tokens,
            queue_s=self.timings.queue_s,
            ttft_s=self.first_delta_s or 0.0,
            total_s=time.monotonic() - self.began,
            tokens_per_s=self._tokens_per_s(),
            cost=self.nano / _NANO,
            currency=self.currency,
        )

    def _tokens_per_s(self) -> float:
        """As the engine measured it; of an answer that was cut off, as its pieces came; where another
        went on, that of who began: the receipt's engine is that one.
        """
        if self._speed_begun is not None:
            return self._speed_begun
        if self.finished:
            decode_s = self.timings.decode_s
            return self._usage.completion_tokens / decode_s if decode_s > 0 else 0.0
        return self._speed_of_pieces()

    def _speed_of_pieces(self) -> float:
        if len(self._stretch) < 2:
            return 0.0
        (since, num_before), (until, number) = self._stretch
        return (number - num_before) / (until - since) if until > since else 0.0

    def closing(self, receipt: Receipt, outcome: str, chat_id: str | None) -> Closing:
        """What the books need of a request that is over."""
        return Closing(
            receipt,
            self.created,
            self.request.door,
            self.request.tenant,
            chat_id,
            outcome,
            tuple(self.tried),
            self.limits,
            self.decision,
            self.precedent,
            self.private,
        )
