"""From a request to what the engine is asked: rendered, tokenized, checked. All that can be wrong with a
request is found here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from edgecloud.errors import BadRequest, ContextLengthExceeded
from edgecloud.log_lines import current_request_id
from edgecloud.prompt import tokenize_prompt
from edgecloud.types import ChatRequest
from edgecloud.vocabulary import check_ids

from .config import PoolConfig
from .model_text import ModelText
from .prefix import Namespace
from .runner import Drawing
from .sequence import Job
from .ticket import Ask


class Prepared(NamedTuple):
    """`tail` is the end of a chat prompt's text, which tells whether the answer begins inside of markup."""

    ask: Ask
    tail: str


def namespace(text: ModelText, request: ChatRequest) -> Namespace:
    """Whose computed prefixes may serve the request: only those of the same key, so that no tenant learns
    from the time it takes what another has asked.
    """
    return Namespace(text.fingerprint, salt=request.tenant or "")


def prepare(
    request: ChatRequest, text: ModelText, config: PoolConfig, defaults: Drawing, deadline: float | None
) -> Prepared:
    """`defaults` draw where the request leaves it open; `deadline` is on the engine's clock.

    Raises `BadRequest` or `ContextLengthExceeded` for what can't be served, whatever the load.
    """
    prompt, tail = tokenize_prompt(text.vocabulary, text.template, request)
    room = config.max_tokens - len(prompt)
    if room < 1 or len(prompt) > config.num_slots:
        param = "messages" if request.is_chat else "prompt"
        raise ContextLengthExceeded(
            len(prompt), config.max_tokens, param=param, setting="pool_server.context, pool_server.kv_mb"
        )
    if request.max_tokens is not None and (
        request.max_tokens < 0 or (request.max_tokens == 0 and not request.echo)
    ):
        raise BadRequest("max_tokens must be at least 1 (0 only with echo).", param="max_tokens")
    score_prompt = request.echo and request.logprobs is not None
    job = Job(
        prompt=tuple(prompt),
        max_tokens=room if request.max_tokens is None else min(request.max_tokens, room),
        n=request.n,
        # Smaller goes first at the door, larger in the scheduler.
        priority=-request.priority,
        deadline=deadline,
        tenant=request.tenant or "",
        namespace=namespace(text, request),
        # A prefix that is not computed has no logits to score the prompt with.
        read_prefix=not score_prompt,
        # The name that the client and its own log know it by.
        label=current_request_id.get() or request.id,
    )
    config.refuse_the_impossible(job)
    drawing = _drawing(request, text, defaults, score_prompt=score_prompt)
    return Prepared(Ask(job, drawing, request.stop, text.spell), tail)


def _drawing(request: ChatRequest, text: ModelText, defaults: Drawing, *, score_prompt: bool) -> Drawing:
    vocabulary, sampling = text.vocabulary, request.sampling
    check_ids(vocabulary, sampling.logit_bias, "logit_bias")
    check_ids(vocabulary, request.stop_token_ids, "stop_token_ids")
    given = {
        name: value
        for name in ("temperature", "top_k", "top_p", "min_p")
        if (value := getattr(sampling, name)) is not None
    }
    ends = frozenset() if request.ignore_eos else vocabulary.eog_ids
    return replace(
        defaults,
        **given,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repeat_penalty=sampling.repeat_penalty,
        logit_bias=dict(sampling.logit_bias),
        seed=sampling.seed,
        stop_ids=ends | frozenset(request.stop_token_ids),
        banned=vocabulary.eog_ids - frozenset(request.stop_token_ids) if request.ignore_eos else frozenset(),
        min_tokens=request.min_tokens,
        logprobs=request.logprobs,
        score_prompt=score_prompt,
        mask=text.mask(request),
    )
