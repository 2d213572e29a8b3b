"""OpenAI's legacy completions, both ways.

One body may hold many prompts, each a request of its own; choice `prompt_no * n + i` is the i-th answer to
the prompt of that number.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Done,
    EngineEvent,
    Event,
    Finish,
    Notice,
    Start,
    TextDelta,
    TokenLogprob,
    Usage,
)

from . import fields as read
from . import upstream_values as values
from .common import Answer, Identity, StreamOptions, finite, openai_usage, suffix, timings_body
from .constraints import constraint
from .fields import Fields
from .sampling import max_tokens, min_tokens, priority, sampling, stop_token_ids, stops, stream_options
from .upstream import StreamDecoder
from .upstream_request import encode_common

MAX_CHOICES = 128
MAX_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 16

# ------------------------------------------------------------------------------------------------ the request


def parse(body: Any) -> tuple[list[ChatRequest], StreamOptions]:
    """One request for each prompt of a decoded body. Raises `BadRequest` with the field's path."""
    fields = Fields(body)
    prompts = read.inputs(fields.require("prompt"), "prompt", MAX_CHOICES)
    n = fields.integer("n", 1, MAX_CHOICES) or 1
    if len(prompts) * n > MAX_CHOICES:
        raise fields.wrong("prompt", f"asks for more than {MAX_CHOICES} answers, all prompts together")
    best_of = fields.integer("best_of")
    if best_of is not None and best_of != n:
        raise fields.wrong("best_of", "must be the same as n: answers are not ranked here")
    if fields.text("suffix"):
        raise fields.wrong("suffix", "is not supported")
    echo = fields.flag("echo") or False
    limit = max_tokens(fields, least=0)
    if limit == 0 and not echo:
        raise fields.wrong("max_tokens", "can only be 0 together with echo, which then scores the prompt")
    unlimited = fields.get("n_predict") == -1
    limit = DEFAULT_MAX_TOKENS if limit is None and not unlimited else limit
    least, rank = min_tokens(fields, limit), priority(fields)
    model = "auto" if not fields.has("model") else fields.name("model")
    drawn = sampling(fields)
    stop, stop_ids = stops(fields), stop_token_ids(fields)
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    limits = constraint(fields)
    ignore_eos = fields.flag("ignore_eos") or False
    requests = [
        ChatRequest(
            prompt=prompt,
            model=model,
            sampling=drawn,
            max_tokens=limit,
            stop=stop,
            stop_token_ids=stop_ids,
            min_tokens=least,
            ignore_eos=ignore_eos,
            n=n,
            logprobs=logprobs,
            echo=echo,
            constraint=limits,
            priority=rank,
            door="http",
        )
        for prompt in prompts
    ]
    return requests, stream_options(fields)


# ------------------------------------------------------------------------------------------------- the answer


class CompletionAssembler:
    """Gathers the events of all prompts of one body into a `text_completion`."""

    def __init__(self, requests: Sequence[ChatRequest], model: str, created: int) -> None:
        self._requests = requests
        self._created = created
        self._answers = [Answer(model, request.n) for request in requests]

    def add(self, prompt_no: int, event: Event | Done) -> None:
        self._answers[prompt_no].add(event)

    def body(self) -> dict[str, Any]:
        """The body, once the streams of all prompts have ended."""
        identity = self._answers[0].identity
        choices: list[dict[str, Any]] = []
        for request, answer in zip(self._requests, self._answers, strict=True):
            for choice in answer.choices:
                logprobs = None if request.logprobs is None else _LegacyLogprobs().body(choice.logprobs)
                choices.append(_choice_body(len(choices), choice.text, logprobs, choice.finish_reason))
        return {
            **_head(self._requests, self._created),
            "model": identity.model,
            "system_fingerprint": identity.fingerprint,
            "choices": choices,
            "usage": openai_usage(_sum(answer.usage for answer in self._answers)),
            **(self._answers[0].extras if len(self._answers) == 1 else {}),
        }


class CompletionChunks:
    """Turns the events of all prompts of one body, interleaved as they come, into stream chunks."""

    def __init__(
        self, requests: Sequence[ChatRequest], options: StreamOptions, model: str, created: int
    ) -> None:
        self._requests = requests
        self._options = options
        self._head = _head(requests, created)
        self._identity = Identity(model)
        self._usages = [Usage()] * len(requests)
        self._unfinished = len(requests)
        self._logprobs: dict[int, _LegacyLogprobs] = {}

    def encode(self, prompt_no: int, event: Event | Done) -> list[dict[str, Any]]:
        """The chunks for one event of one prompt. The usage of all comes with the end of the last one."""
        request = self._requests[prompt_no]
        match event:
            case TextDelta():
                if self._options.continuous_usage:
                    usage = self._usages[prompt_no]
                    self._usages[prompt_no] = Usage(
                        usage.prompt_tokens, usage.completion_tokens + event.num_tokens
                    )
                index = prompt_no * request.n + event.index
                logprobs = None
                if request.logprobs is not None and event.logprobs:
                    logprobs = self._logprobs.setdefault(index, _LegacyLogprobs()).body(event.logprobs)
                return [self._chunk([_choice_body(index, event.text, logprobs, None)])]
            case ChoiceDone():
                choice = _choice_body(prompt_no * request.n + event.index, "", None, event.reason)
                return [{**self._chunk([choice]), **self._identity.on_the_way()}]
            case Notice():
                self._identity.noticed(event)
            case Start():
                self._identity.answered_by(event)
                self._usages[prompt_no] = Usage(prompt_tokens=event.prompt_tokens)
            case Finish() | Done():
                self._usages[prompt_no] = event.usage
                self._unfinished -= 1
                if not self._unfinished and self._options.include_usage:
                    extras = timings_body(event) if len(self._requests) == 1 else {}
                    return [{**self._chunk([]), "usage": openai_usage(_sum(self._usages)), **extras}]
        return []

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {
            **self._head,
            "model": self._identity.model,
            "system_fingerprint": self._identity.fingerprint,
            "choices": choices,
        }
        if self._options.include_usage:
            chunk["usage"] = openai_usage(_sum(self._usages)) if self._options.continuous_usage else None
        return chunk


def _head(requests: Sequence[ChatRequest], created: int) -> dict[str, Any]:
    return {"id": f"cmpl-{suffix(requests[0].id)}", "object": "text_completion", "created": created}


def _choice_body(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _sum(usages: Iterable[Usage]) -> Usage:
    all_of = list(usages)
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in all_of),
        completion_tokens=sum(usage.completion_tokens for usage in all_of),
        cached_tokens=sum(usage.cached_tokens for usage in all_of),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in all_of),
    )


class _LegacyLogprobs:
    """The parallel lists of the legacy shape for one choice, chunk by chunk.

    Offsets count characters of what the tokens' own bytes spell, so they hold while text is still held back;
    all tokens of one character have the offset of that character.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def body(self, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
        tokens: list[str] = []
        chosen: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for entry in logprobs:
            name = _token_name(entry.bytes)
            # The first token of an echoed prompt follows nothing: NaN with us, null at OpenAI.
            unknown = entry.logprob != entry.logprob
            tokens.append(name)
            chosen.append(None if unknown else finite(entry.logprob))
            best = {_token_name(top.bytes): finite(top.logprob) for top in entry.top}
            tops.append(None if unknown else best | {name: finite(entry.logprob)})
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(entry.bytes))
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets}


def _token_name(raw: bytes) -> str:
    """The token's text, or OpenAI's `bytes:\\xe2\\x80` where it is only a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


# ------------------------------------------------------------------------------ the other way: to an upstream


def encode(request: ChatRequest, model: str, stream: bool = True) -> dict[str, Any]:
    """The body that asks an OpenAI-compatible server to continue `request.prompt`."""
    if request.prompt is None:
        raise ValueError("A completion needs a prompt; chat messages go to openai_chat.encode.")
    body = encode_common(request, model, stream)
    body["prompt"] = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    if request.logprobs is not None:
        body["logprobs"] = request.logprobs
    if request.echo:
        body["echo"] = True
    return body


class ChunkDecoder(StreamDecoder):
    """Completion chunks, or one whole `text_completion`, to events."""

    def _deltas(self, index: int, choice: dict[str, Any]) -> list[EngineEvent]:
        text = values.string(choice.get("text"), "text")
        logprobs = self.joined(index, _read_logprobs(choice.get("logprobs")), bool(text))
        return [TextDelta(text, index, logprobs, max(1, len(logprobs)))] if text else []


def _read_logprobs(value: Any) -> list[TokenLogprob]:
    """The legacy lists, or the chat shape that llama-server sends here too."""
    body = values.mapping(value, "logprobs")
    if body.get("content") is not None:
        return [values.token_logprob(entry) for entry in values.sequence(body["content"], "logprobs")]
    tokens = values.sequence(body.get("tokens"), "tokens")
    chosen = values.sequence(body.get("token_logprobs"), "token_logprobs")
    tops = values.sequence(body.get("top_logprobs"), "top_logprobs") or [None] * len(tokens)
    if not len(tokens) == len(chosen) == len(tops):
        raise values.nonsense("set of logprobs")
    return [
        values.legacy_logprob(token, logprob, top)
        for token, logprob, top in zip(tokens, chosen, tops, strict=True)
    ]
