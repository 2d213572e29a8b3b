"""The seam between scheduling, which knows no tensors, and the model, which knows no queue.

    begin(request) ─▶ execute(plan) · execute(plan) · … ─▶ end(request)

The engine calls it from one thread. What a request's draws need (its prompt, its sampling, the tokens drawn
so far, its grammar) lives here by request and choice, and not by place in a batch: pre-emption and swapping
touch none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from edgecloud.errors import EdgeCloudError
from edgecloud.vocabulary import TokenScore

from .plan import StepPlan


class TokenMask(Protocol):
    """What an answer must match. Raises `BadRequest` when it can't be followed any further."""

    def clone(self) -> TokenMask:
        """Another answer under the same rules, from the state this one is in."""

    def allows(self, token: int) -> bool:
        """Whether the token may come next."""

    def allowed(self) -> bytes:
        """One bit per token of the vocabulary, least significant first: which may come next."""

    def accept(self, token: int) -> None:
        """Advance by a token that is allowed and does not end the answer."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How the tokens of one request are drawn, every default filled in.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and `repeat_penalty` 1 are off. Presence and
    frequency penalties look at what was drawn, the repeat penalty at the last 64 tokens, prompt included.
    Without a `seed` one is made up. `stop_ids` end a choice and are its last token; before `min_tokens` they
    can't be drawn, and `banned` ones never. `logprobs` alternatives (None: none at all) come with each token,
    under the model's raw distribution; with `score_prompt` with each of the prompt's too.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    banned: frozenset[int] = frozenset()
    min_tokens: int = 0
    logprobs: int | None = None
    score_prompt: bool = False
    mask: TokenMask | None = None


class Draw(NamedTuple):
    """What one sample gave: tokens up to and including the one that ends the choice, if one does.

    More than one only when drafts were accepted. `scores` has one entry per token, or none where the request
    asked for no logprobs. A text may end earlier than its tokens: cut them, and commit what is left.
    """

    tokens: tuple[int, ...]
    stop: bool = False
    scores: tuple[TokenScore, ...] = ()


class StepOutput(NamedTuple):
    """Answers a plan. `draws` by sequence id, one per sample that its item asked for; `scores` by request id,
    of the next prompt tokens in order (the first token of a prompt has none).

    `failed` are requests, by id, that could not be drawn for (a grammar with no way on, logits that are no
    numbers): abort them before the commit; the step is good for everyone else.
    """

    draws: Mapping[int, tuple[Draw, ...]]
    scores: Mapping[int, tuple[TokenScore, ...]]
    failed: Mapping[int, EdgeCloudError]


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """`context` and `vocab_size` in tokens, `block_bytes` of one KV block, all layers together.

    `fingerprint` changes whenever computed KV would. `kept` is the bytes of weights by the form they are kept
    in (`int8`, `float32`), `converted` of those that came quantized and no longer are, by the file's type.
    """

    model: str
    device: str
    vocab_size: int
    context: int
    block_size: int
    block_bytes: int
    kv_type: str
    kept: Mapping[str, int] = field(default_factory=dict)
    converted: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    num_parameters: int = 0


class Runner(Protocol):
    """A model with its KV memory. Block numbers of plans index that memory; see `plan.py` for the order of a
    step's parts."""

    @property
    def facts(self) -> RunnerFacts: ...

    def begin(self, request_id: int, prompt: tuple[int, ...], drawing: Drawing) -> None:
        """Before the first plan that names the request."""

    def execute(self, plan: StepPlan) -> StepOutput:
        """Carry a step out. After an exception its requests are lost (`Scheduler.fail`), the runner lives."""

    def end(self, request_id: int) -> None:
        """Forget a request, however it ended; unknown ones are ignored."""

    def close(self) -> None:
        """Give the memory back."""
