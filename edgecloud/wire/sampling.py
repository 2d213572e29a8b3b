"""How tokens are drawn and when to stop: OpenAI's fields with llama.cpp's and vLLM's additions."""

from __future__ import annotations

from typing import Any

from edgecloud.errors import BadRequest
from edgecloud.types import Sampling

from . import fields as read
from .common import StreamOptions
from .fields import Fields

MAX_STOPS = 16
MAX_STOP_LENGTH = 4096
MAX_PRIORITY = 100


def sampling(body: Fields) -> Sampling:
    """Raises `BadRequest` naming the field that is out of range.

    `top_k` and `seed` of -1 mean off and random, as llama.cpp's and vLLM's clients send them.
    """
    top_k = body.integer("top_k", -1, 2**31 - 1)
    seed = body.integer("seed")
    repeat = body.number("repeat_penalty", 0, 1e3, above=True)
    if repeat is None:
        repeat = body.number("repetition_penalty", 0, 1e3, above=True)
    return Sampling(
        temperature=body.number("temperature", 0, 2),
        top_k=max(top_k, 0) if top_k is not None else None,
        top_p=body.number("top_p", 0, 1, above=True),
        min_p=body.number("min_p", 0, 1),
        presence_penalty=body.number("presence_penalty", -2, 2) or 0.0,
        frequency_penalty=body.number("frequency_penalty", -2, 2) or 0.0,
        repeat_penalty=1.0 if repeat is None else repeat,
        logit_bias=_logit_bias(body),
        seed=None if seed == -1 else seed,
    )


def _logit_bias(body: Fields) -> dict[int, float]:
    biases = body.object("logit_bias")
    if biases is None:
        return {}
    result = {}
    for key in biases.data:
        # Our path, never the caller's key: keys can be a megabyte long too.
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10):
            raise body.wrong("logit_bias", "must have token ids as keys")
        bias = biases.number(key, -100, 100)
        if bias is None:
            raise body.wrong("logit_bias", "must have numbers as values")
        result[int(key)] = bias
    return result


def stops(body: Fields, name: str = "stop") -> tuple[str, ...]:
    """One string or a list of up to 16, none of them empty."""
    value: Any = body.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise body.wrong(name, "must be a string or a list of strings")
    if len(value) > MAX_STOPS:
        raise body.wrong(name, f"may hold at most {MAX_STOPS} strings")
    result = tuple(read.text(item, body.param(name), longest=MAX_STOP_LENGTH) for item in value)
    if "" in result:
        raise body.wrong(name, "must not hold an empty string")
    return result


def stop_token_ids(body: Fields) -> tuple[int, ...]:
    return read.token_ids(body.list("stop_token_ids") or [], body.param("stop_token_ids"))


def max_tokens(body: Fields, *, least: int = 1) -> int | None:
    """`max_completion_tokens` wins over `max_tokens`, that over llama.cpp's `n_predict` (-1: no limit)."""
    limits = [body.integer(name, least) for name in ("max_completion_tokens", "max_tokens")]
    predict = body.integer("n_predict", -1)
    if predict == 0:
        raise body.wrong("n_predict", "must be -1 or at least 1")
    limits.append(None if predict == -1 else predict)
    return next((limit for limit in limits if limit is not None), None)


def min_tokens(body: Fields, limit: int | None) -> int:
    """vLLM's `min_tokens`, at most `limit`, the request's own maximum."""
    least = body.integer("min_tokens", 0, 2**31 - 1) or 0
    if limit is not None and least > limit:
        raise body.wrong("min_tokens", "must not be more than max_tokens")
    return least


def priority(body: Fields) -> int:
    """vLLM's `priority`: smaller goes first."""
    return body.integer("priority", -MAX_PRIORITY, MAX_PRIORITY) or 0


def stream_options(body: Fields) -> StreamOptions:
    """`stream` and `stream_options`; the latter without the former is an error, as at OpenAI."""
    stream = body.flag("stream") or False
    options = body.object("stream_options")
    if options is None:
        return StreamOptions(stream)
    if not stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    include_usage = options.flag("include_usage") or False
    return StreamOptions(
        stream, include_usage, include_usage and bool(options.flag("continuous_usage_stats"))
    )
