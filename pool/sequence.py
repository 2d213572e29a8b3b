"""What the engine knows of a request: what was asked, one sequence per choice, and how it ended.

There is no prefill or decode phase. One number, `num_computed`, chases `num_tokens`; a sequence that lacks
one token decodes, one that lacks more is in its prompt, or coming back after a pre-emption: the same thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .blocks import BlockTable
from .prefix import Namespace

StopReason = Literal["stop", "length"]
EndReason = Literal["done", "abort", "deadline", "error"]
Rank = tuple[float, int]


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked of the engine, all checked and tokenized.

    `max_tokens` 0 only computes the prompt. `deadline` is a time in seconds on the clock that `now` comes
    from. A higher `priority` is more urgent. With `read_prefix` off the whole prompt is computed (its
    logprobs are wanted), though its blocks may serve others. `label` is the client's own name for the
    request and means nothing here.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    n: int = 1
    priority: int = 0
    deadline: float | None = None
    tenant: str = ""
    namespace: Namespace = field(default_factory=Namespace)
    read_prefix: bool = True
    label: str = ""


@dataclass(eq=False, slots=True)
class Request:
    """One job under the engine's own id; `sequences` are its choices, only one until the prompt is done."""

    id: int
    job: Job
    arrival: float
    sequences: list[Sequence] = field(default_factory=list)
    num_cached: int = 0
    admitted_at: float | None = None
    first_token_at: float | None = None
    ended: EndReason | None = None


class Sequence:
    """One choice of a request: its tokens, its blocks, its place in the order."""

    __slots__ = (
        "admitted",
        "choice",
        "drafts",
        "host",
        "id",
        "in_flight",
        "max_length",
        "num_computed",
        "num_hit",
        "num_overtaken",
        "num_prompt",
        "predicted",
        "rank",
        "request",
        "running",
        "stopped",
        "table",
        "tokens",
        "width",
    )

    def __init__(self, id: int, request: Request, choice: int, tokens: list[int], table: BlockTable) -> None:
        self.id = id
        self.request = request
        self.choice = choice
        self.tokens = tokens
        self.table = table
        self.num_prompt = len(request.job.prompt)
        self.max_length = self.num_prompt + request.job.max_tokens
        # Choices that it stands for: all of them until the first tokens are drawn.
        self.width = 1 if request.sequences else request.job.n
        self.num_computed = 0
        # Host blocks that hold the computed tokens; empty unless swapped out.
        self.host: list[int] = []
        # Proposed tokens to verify in the next step; never part of `tokens` before they are accepted.
        self.drafts: tuple[int, ...] = ()
        # Smaller goes first. The policy sets it, and never again once the sequence has been admitted: an
        # order that cannot turn around is what keeps two sequences from pre-empting each other for ever.
        self.rank: Rank = (0.0, id)
        self.admitted = False
        self.running = False
        self.in_flight = False
        self.stopped: StopReason | None = None
        # Tokens of the prompt that a prefix hit would have spared when last looked.
        self.num_hit = 0
        # Admissions that went past this one because it was refused for its size.
        self.num_overtaken = 0
        # Output tokens expected when it was admitted; 0 before.
        self.predicted = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Output tokens it may still draw."""
        return self.max_length - len(self.tokens)

    @property
    def finished(self) -> bool:
        return self.stopped is not None or self.request.ended is not None


class Progress(NamedTuple):
    """New tokens of one choice; `stopped` says why it was the last of them."""

    request_id: int
    choice: int
    tokens: tuple[int, ...]
    stopped: StopReason | None


class Ended(NamedTuple):
    """A request's one and only end, with what it used: tokens, and times of the caller's clock in seconds."""

    request_id: int
    reason: EndReason
    num_prompt: int
    num_cached: int
    num_output: int
    arrival: float
    admitted_at: float | None
    first_token_at: float | None
    ended_at: float
