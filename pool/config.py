"""The sizes of a pool, and which jobs can never fit them."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgecloud.errors import BadRequest, ConfigError, ContextLengthExceeded

from .admission import Watermarks
from .preemption import PreemptionMode
from .sequence import Job


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Sizes in tokens, blocks and choices. `max_chunk` bounds one sequence's prompt tokens in one step,
    `max_waiting` the requests that wait for their first admission.
    """

    num_blocks: int
    block_size: int = 16
    num_host_blocks: int = 0
    context: int = 8192
    token_budget: int = 2048
    max_chunk: int = 2048
    max_running: int = 256
    max_waiting: int = 1024
    caching: bool = True
    preemption: PreemptionMode = "auto"
    watermarks: Watermarks = field(default_factory=Watermarks)

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_size", "context", "token_budget", "max_chunk", "max_running"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.token_budget < self.max_running:
            raise ConfigError(
                f"token_budget ({self.token_budget}) must be at least max_running ({self.max_running}): "
                "every running sequence may take a token of the same step."
            )

    @property
    def num_slots(self) -> int:
        """Tokens whose KV the whole pool can hold."""
        return self.num_blocks * self.block_size

    @property
    def max_tokens(self) -> int:
        """Tokens, prompt and answer together, that one choice may ever have."""
        # The last token drawn is never computed, so it needs no slot.
        return min(self.context, self.num_slots + 1)

    def refuse_the_impossible(self, job: Job) -> None:
        """Raise for a job that could never run, however long it waited."""
        if not job.prompt:
            raise BadRequest("The prompt is empty: send at least one token.", param="prompt")
        if job.max_tokens < 0:
            raise BadRequest(f"max_tokens must be 0 or more, not {job.max_tokens}.", param="max_tokens")
        if not 1 <= job.n <= self.max_running:
            raise BadRequest(
                f"n must be from 1 to {self.max_running}, the choices this pool runs at once, not {job.n}.",
                param="n",
            )
        num_prompt = len(job.prompt)
        if num_prompt > self.num_slots or num_prompt + min(job.max_tokens, 1) > self.max_tokens:
            raise ContextLengthExceeded(num_prompt, self.max_tokens)
        if num_prompt + job.max_tokens > self.max_tokens:
            raise BadRequest(
                f"The prompt is {num_prompt} tokens and max_tokens {job.max_tokens}, together more than the "
                f"{self.max_tokens} that fit: lower max_tokens to {self.max_tokens - num_prompt} or less.",
                param="max_tokens",
                code="context_length_exceeded",
            )
