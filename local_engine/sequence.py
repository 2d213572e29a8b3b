"""What the batcher works on: jobs as they are asked for, tickets that the asker holds, and sequences as they
run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from edgecloud.errors import EdgeCloudError
from edgecloud.inbox import Inbox
from edgecloud.vocabulary import TokenScore

from .sampler import SamplingPlan, TokenGrammar, TokenSampler
from .saved import Fetch


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt and `n` answers to it, checked and tokenized.

    `stop_ids` end an answer when drawn; `deadline` is on `time.monotonic`; `score_prompt` asks for the
    prompt's own logprobs; `chat_id` is the chat that what is computed may be saved to disk for.
    """

    prompt: list[int]
    max_tokens: int
    n: int = 1
    plan: SamplingPlan = field(default_factory=SamplingPlan)
    grammar: TokenGrammar | None = None
    stop_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    score_prompt: bool = False
    deadline: float | None = None
    chat_id: str | None = None


class Drawn(NamedTuple):
    """A token of one choice."""

    choice: int
    token: int
    logprob: TokenScore | None


class Scored(NamedTuple):
    """Logprobs of a run of prompt tokens, in order; the first token of a prompt has none."""

    logprobs: list[TokenScore]


class Ended(NamedTuple):
    """A choice ended by itself."""

    choice: int
    reason: Literal["stop", "length"]


class Closed(NamedTuple):
    """The last message of a ticket."""

    error: EdgeCloudError | None = None


Message = Drawn | Scored | Ended | Closed


class WakeUp:
    """Wakes the batcher's thread; a thread that sleeps in `wait` burns nothing."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until woken; False if that took longer than `timeout` seconds."""
        woken = self._event.wait(timeout)
        self._event.clear()
        return woken


class Ticket(Inbox[Message]):
    """The asker's end of a job: receive its messages, stop a choice, cancel it all. Belongs to the event
    loop it was made on.
    """

    def __init__(self, job: Job, wake: WakeUp) -> None:
        super().__init__()
        self.job = job
        self.submitted_at = time.monotonic()
        self.started_at: float | None = None
        self.prefilled_at: float | None = None
        self.cached_tokens = 0
        # Written by the asker, read by the batcher between steps.
        self.cancelled = False
        self.stopped: set[int] = set()
        # Written by the batcher's thread only.
        self.num_open = job.n
        self._wake = wake

    def stop(self, index: int) -> None:
        """End one choice; what it computed stays as a prefix for others. No message follows for it."""
        self.stopped.add(index)
        self._wake()

    def cancel(self) -> None:
        """End everything within a step or two, in whatever state it is. Safe to call at any time."""
        if not self.cancelled:
            self.cancelled = True
            self._wake()


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making. `num_computed` of `tokens` are in KV memory; what is missing is the next
    step's work.

    Prefill, decode, a shared prefix and coming back after pre-emption are all the same: `num_computed` chases
    `len(tokens)`.
    """

    ticket: Ticket
    index: int
    sampler: TokenSampler
    tokens: list[int]
    num_prompt: int
    num_computed: int = 0
    seq_id: int = -1
    # Saved KV state while pre-empted.
    state: bytearray | None = None
    # A saved prefix that is being read from disk, or was.
    fetch: Fetch | None = None
    # The running sequence whose prefill covers our first `follow_until` tokens: waiting for it is cheaper
    # than computing them again.
    leader: Sequence | None = None
    follow_until: int = 0
    arrival: int = field(default=0)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be drawn."""
        return len(self.tokens) - self.num_computed

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def is_decoding(self) -> bool:
        """Only its last token is missing, as in every step of an answer."""
        return self.num_computed == len(self.tokens) - 1

    @property
    def is_ready(self) -> bool:
        """It may run: no saved prefix is on its way."""
        return self.fetch is None or not self.fetch.is_awaited

    @property
    def scores_prompt(self) -> bool:
        return self.ticket.job.score_prompt and self.index == 0 and self.num_computed < self.num_prompt

    def next_tokens(self, count: int) -> SequenceOf[int]:
        return self.tokens[self.num_computed : self.num_computed + count]
