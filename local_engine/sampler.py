"""How one sequence draws its next token: the chain of samplers, the grammar beside it, and logprobs of the
raw distribution.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from edgecloud.errors import BadRequest
from edgecloud.settings import LocalSettings
from edgecloud.types import Sampling
from edgecloud.vocabulary import TokenScore

from .llama import Candidates, Chain, Context, Logits, Model

T = TypeVar("T", int, float)

REPEAT_WINDOW = 64
# llama.cpp reads this seed as 'pick one for me'.
_RANDOM_SEED = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Sampling with every default filled in. `banned` tokens can never be drawn (end tokens under
    `ignore_eos`).
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
    banned: frozenset[int] = frozenset()


def plan_sampling(
    sampling: Sampling, defaults: LocalSettings, model: Model, *, ignore_eos: bool = False
) -> SamplingPlan:
    """Fill in the engine's defaults. Raises `BadRequest` for a `logit_bias` outside the vocabulary."""
    for token in sampling.logit_bias:
        if not 0 <= token < model.n_vocab:
            raise BadRequest(
                f"logit_bias names token {token}, but this model's vocabulary has {model.n_vocab} tokens.",
                param="logit_bias",
            )
    return SamplingPlan(
        temperature=_default(sampling.temperature, defaults.temperature),
        top_k=_default(sampling.top_k, defaults.top_k),
        top_p=_default(sampling.top_p, defaults.top_p),
        min_p=_default(sampling.min_p, defaults.min_p),
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repeat_penalty=sampling.repeat_penalty,
        logit_bias=dict(sampling.logit_bias),
        seed=sampling.seed,
        banned=model.eog_ids if ignore_eos else frozenset(),
    )


def _default(value: T | None, default: T) -> T:
    return default if value is None else value


def derive_seed(seed: int | None, index: int) -> int:
    """The 32-bit seed of choice `index`: distinct per choice, the same whenever `seed` (any int64) is the
    same.
    """
    if seed is None:
        return secrets.randbelow(_RANDOM_SEED)
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % _RANDOM_SEED


class TokenGrammar(Protocol):
    """What an answer must match: says which tokens may come next, and follows those that were drawn.

    `param` is the field of the request that asked for it. `mask` and `accept` raise `BadRequest` when it
    can't be followed any further.
    """

    @property
    def param(self) -> str: ...

    def clone(self) -> TokenGrammar:
        """Another answer under the same grammar, from the state this one is in."""

    def allows(self, token: int, scratch: Candidates) -> bool:
        """Whether the token may come next; `scratch` is overwritten."""

    def mask(self, candidates: Candidates) -> None:
        """Set the logit of every candidate that can't come next to minus infinity."""

    def accept(self, token: int) -> None:
        """Advance by a token that is allowed."""

    def close(self) -> None: ...


class TokenSampler:
    """Draws the tokens of one choice. `history` is the end of the prompt, which the repeat penalty looks at
    too.
    """

    def __init__(
        self,
        model: Model,
        plan: SamplingPlan,
        *,
        index: int = 0,
        history: Sequence[int] = (),
        grammar: TokenGrammar | None = None,
    ) -> None:
        self._banned = sorted(plan.banned)
        self._eog = model.eog_ids
        self._grammar = grammar.clone() if grammar is not None else None
        self._chain = _build_chain(model, plan, derive_seed(plan.seed, index), history)

    def draw(self, context: Context, index: int, scratch: Candidates) -> int | None:
        """The next token from the logits of batch position `index`; None when the grammar is complete and
        ends are banned.

        Raises `BadRequest` when the grammar has led to where no token can follow.
        """
        if self._grammar is None:
            return self._chain.sample(context, index)
        return self._draw_constrained(self._grammar, context.logits(index), scratch)

    def _draw_constrained(self, grammar: TokenGrammar, logits: Logits, scratch: Candidates) -> int | None:
        # Most draws already obey, and asking the grammar about one token is a thousand times cheaper than
        # about all.
        scratch.load(logits)
        token = self._chain.pick(scratch)
        if not grammar.allows(token, scratch):
            scratch.load(logits)
            grammar.mask(scratch)
            if not scratch.any_possible():
                raise BadRequest(
                    "The grammar allows nothing to follow what was written: it can't be completed.",
                    param=grammar.param,
                )
            scratch.forbid(self._banned)
            if not scratch.any_possible():
                return None
            token = self._chain.pick(scratch)
        if token not in self._eog:
            grammar.accept(token)
        self._chain.accept(token)
        return token

    def close(self) -> None:
        self._chain.close()
        if self._grammar is not None:
            self._grammar.close()


def _build_chain(model: Model, plan: SamplingPlan, seed: int, history: Sequence[int]) -> Chain:
    chain = Chain(model)
    if plan.logit_bias or plan.banned:
        chain.logit_bias({**plan.logit_bias, **dict.fromkeys(plan.banned, -math.inf)})
    if plan.repeat_penalty != 1.0:
        chain.penalties(REPEAT_WINDOW, plan.repeat_penalty, 0.0, 0.0, history[-REPEAT_WINDOW:])
    if plan.presence_penalty or plan.frequency_penalty:
        # As OpenAI defines them: over everything generated so far, and nothing of the prompt.
        chain.penalties(model.n_ctx_train, 1.0, plan.frequency_penalty, plan.presence_penalty)
    if plan.temperature <= 0:
        chain.greedy()
        return chain
    if plan.top_k > 0:
        chain.top_k(plan.top_k)
    if plan.top_p < 1:
        chain.top_p(plan.top_p)
    if plan.min_p > 0:
        chain.min_p(plan.min_p)
    chain.temperature(plan.temperature)
    chain.draw(seed)
    return chain


def raw_logprob(logits: Logits, token_id: int, num_top: int) -> TokenScore:
    """Logprobs before temperature, penalties, bias and grammar."""
    peak = float(logits.max())
    normaliser = peak + math.log(float(np.exp(logits - peak, dtype=np.float32).sum(dtype=np.float64)))
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        ids = np.argpartition(logits, -num_top)[-num_top:]
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        top = tuple((int(i), float(logits[i]) - normaliser) for i in ids)
    return TokenScore(token_id, float(logits[token_id]) - normaliser, top)
