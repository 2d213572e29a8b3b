"""Reads what other OpenAI-compatible servers send: vLLM, SGLang, llama-server, Ollama, hosted APIs.

Tolerant where they differ in habit (missing ids, null content, names of fields), and an `UpstreamError` where
a shape makes no sense. Their texts are quoted only in part, and never on a 401 or 403, where some of them
repeat the key.
"""

from __future__ import annotations

import json
import math
from typing import Any

from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    NotSupported,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
    UpstreamError,
)
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Constraint,
    Done,
    EngineEvent,
    FinishReason,
    Notice,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
    new_id,
)

from .common import compact

MAX_QUOTE = 300
# More than any context there is, and it fits every database.
MOST_TOKENS = 10**9
_LENGTH = ("length", "max_tokens", "max_output_tokens")
_FAILED = ("error", "abort", "cancelled")
_CONTEXT_CODES = ("context_length_exceeded", "exceed_context_size_error")
_CONTEXT_WORDS = ("context length", "context size", "context window", "maximum context", "max_model_len")


class StreamDecoder:
    """Turns the chunks of one upstream answer, or its one whole body, into events. `n` choices are expected.

    Emits no `Start`: what it holds is known to the engine that opened the stream.
    """

    def __init__(self, n: int = 1) -> None:
        self._open = set(range(n))
        self._usage: Usage | None = None
        self._timings: Timings | None = None
        self._counted = 0
        self._called: set[int] = set()
        self._waiting: dict[int, list[TokenLogprob]] = {}

    def feed(self, chunk: Any) -> list[EngineEvent]:
        """Events of one decoded chunk. Raises `UpstreamError` for an error or what makes no sense."""
        chunk = mapping(chunk, "chunk")
        if chunk.get("error"):
            if _is_deadline(chunk):
                raise _deadline_error()
            raise UpstreamError(f"The upstream failed while answering: {quote(chunk)}")
        self._usage = read_usage(chunk.get("usage")) or self._usage
        self._timings = read_timings(chunk.get("timings")) or self._timings
        events: list[EngineEvent] = []
        for entry in sequence(chunk.get("choices"), "choices"):
            choice = mapping(entry, "choice")
            index = count(choice.get("index"), "index")
            # Some servers repeat the last chunk with the usage in it.
            if index in self._open:
                events += self._choice(index, choice)
        return events

    def finish(self) -> list[EngineEvent]:
        """The last event, once the stream has ended. Raises `UpstreamError` if it broke off."""
        if self._open:
            raise UpstreamError("The upstream's answer broke off before it was complete.")
        usage = self._usage or Usage(completion_tokens=self._counted)
        return [Done(usage, self._timings or Timings())]

    def _deltas(self, index: int, choice: dict[str, Any]) -> list[EngineEvent]:
        raise NotImplementedError

    def joined(self, index: int, logprobs: list[TokenLogprob], has_text: bool) -> tuple[TokenLogprob, ...]:
        """The logprobs to send now: those of half a character come without text and wait for the rest."""
        all_of = self._waiting.pop(index, []) + logprobs
        if has_text:
            return tuple(all_of)
        if all_of:
            self._waiting[index] = all_of
        return ()

    def _choice(self, index: int, choice: dict[str, Any]) -> list[EngineEvent]:
        events = self._deltas(index, choice)
        for event in events:
            if isinstance(event, ToolCallDelta):
                self._called.add(index)
            elif isinstance(event, TextDelta | ReasoningDelta):
                self._counted += event.num_tokens
        reason = string(choice.get("finish_reason"), "finish_reason")
        if not reason:
            return events
        self._open.discard(index)
        if reason in _FAILED:
            raise UpstreamError("The upstream gave up while answering.")
        if reason == "content_filter":
            events.append(Notice("truncated", "The upstream's content filter ended the answer."))
        # vLLM's and SGLang's names for the stop string, or for the id of a stop token.
        stop = choice.get("stop_reason") or choice.get("matched_stop")
        ended = self._reason(index, reason)
        events.append(ChoiceDone(index, ended, stop if isinstance(stop, str) and ended == "stop" else None))
        return events

    def _reason(self, index: int, reason: str) -> FinishReason:
        if reason in _LENGTH:
            return "length"
        # Ollama and others say 'stop' after tool calls.
        return "tool_calls" if index in self._called else "stop"


def read_usage(value: Any) -> Usage | None:
    if not value:
        return None
    usage = mapping(value, "usage")
    prompt = mapping(usage.get("prompt_tokens_details"), "prompt_tokens_details")
    completion = mapping(usage.get("completion_tokens_details"), "completion_tokens_details")
    return Usage(
        prompt_tokens=count(usage.get("prompt_tokens"), "prompt_tokens"),
        completion_tokens=count(usage.get("completion_tokens"), "completion_tokens"),
        cached_tokens=count(prompt.get("cached_tokens"), "cached_tokens"),
        reasoning_tokens=count(completion.get("reasoning_tokens"), "reasoning_tokens"),
    )


def read_timings(value: Any) -> Timings | None:
    """What our pools and llama-server say of where the time went; what makes no sense says nothing."""
    if not isinstance(value, dict):
        return None
    parts = (value.get(name) for name in ("queue_ms", "prompt_ms", "predicted_ms"))
    seconds = [
        part / 1000
        if isinstance(part, int | float) and not isinstance(part, bool) and 0 <= part < 1e10
        else 0.0
        for part in parts
    ]
    queue_s, prefill_s, decode_s = seconds
    return Timings(queue_s, prefill_s, queue_s + prefill_s, decode_s)


def mapping(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise nonsense(what)
    return value


def sequence(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise nonsense(what)
    return value


def string(value: Any, what: str) -> str:
    """The text with lone surrogates replaced; "" for null."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise nonsense(what)
    return value if value.isascii() else value.encode(errors="replace").decode()


def count(value: Any, what: str) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise nonsense(what)
    return value


def real(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise nonsense(what)
    try:
        return float(value)
    except OverflowError:
        raise nonsense(what) from None


def nonsense(what: str) -> UpstreamError:
    return UpstreamError(f"The upstream sent a {what} that makes no sense.")


def decode_error(status: int, body: Any, *, retry_after: float | None = None) -> EdgeCloudError:
    """What an upstream's `status` with a decoded JSON `body` (or text, or None) means to our caller.

    What is wrong with the request stays the caller's fault; what is wrong with our key, our money or the
    model's name there is the upstream's, so that the router can go elsewhere.
    """
    message = quote(body)
    if status == 504 and _is_deadline(body):
        return _deadline_error()
    if status in (400, 413, 422) and _is_context(body, message):
        return _context_error(body, message)
    said = f": {message}" if message else "."
    if status in (400, 422):
        error = body.get("error") if isinstance(body, dict) else None
        param = error.get("param") if isinstance(error, dict) else None
        return BadRequest(
            f"The upstream refused the request{said}", param=param[:100] if isinstance(param, str) else None
        )
    if status == 413:
        return PayloadTooLarge("The request is too large for the upstream.")
    if status == 429:
        return Overloaded(f"The upstream has too much to do{said}", retry_after=retry_after)
    if status == 501:
        return NotSupported(f"The upstream can't do that{said}")
    if status == 503:
        return Unavailable(f"The upstream is not ready{said}", retry_after=retry_after)
    if status in (401, 403):
        return UpstreamError(f"The upstream refused our key ({status}).", upstream_status=status)
    return UpstreamError(
        f"The upstream failed with status {status}{said}", upstream_status=status, retry_after=retry_after
    )


def quote(body: Any) -> str:
    """The message in an error body of any known shape, on one line and cut short; "" for none."""
    for _ in range(3):
        if not isinstance(body, dict):
            break
        body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), None)
    if not isinstance(body, str):
        return ""
    line = " ".join(body[: 4 * MAX_QUOTE].encode(errors="replace").decode().split())
    return line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 1] + "…"


def _is_deadline(body: Any) -> bool:
    """Whether an error says that the time we allowed is over, in the code that only servers of ours send."""
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and error.get("code") == DeadlineExceeded.default_code


def _deadline_error() -> DeadlineExceeded:
    return DeadlineExceeded("The upstream's answer took longer than was allowed: allow more time.")


def _is_context(body: Any, message: str) -> bool:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and any(error.get(key) in _CONTEXT_CODES for key in ("code", "type")):
        return True
    return any(words in message.lower() for words in _CONTEXT_WORDS)


def _context_error(body: Any, message: str) -> EdgeCloudError:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
        if isinstance(prompt, int) and isinstance(context, int):
            return ContextLengthExceeded(prompt, context)
    return BadRequest(
        f"The prompt does not fit the upstream's context{': ' + message if message else '.'}",
        param="messages",
        code="context_length_exceeded",
    )


# ---------------------------------------------------------------------------- parts of requests and of deltas


def encode_common(request: ChatRequest, model: str, stream: bool) -> dict[str, Any]:
    """The fields that chat and completion bodies share; extensions only where they were asked for."""
    sampling = request.sampling
    fields: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "seed": sampling.seed,
        "max_tokens": request.max_tokens,
        "stop": list(request.stop) or None,
        "stop_token_ids": list(request.stop_token_ids) or None,
        "min_tokens": request.min_tokens or None,
        "ignore_eos": request.ignore_eos or None,
        "priority": request.priority or None,
        "n": request.n if request.n > 1 else None,
        "stream_options": {"include_usage": True} if stream else None,
    }
    if sampling.repeat_penalty != 1.0:
        # llama.cpp's name and vLLM's.
        fields |= {"repeat_penalty": sampling.repeat_penalty, "repetition_penalty": sampling.repeat_penalty}
    match request.constraint:
        case Constraint("json"):
            fields["response_format"] = {"type": "json_object"}
        case Constraint("schema", source):
            schema = {"name": "answer", "strict": True, "schema": json.loads(source)}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        case Constraint("grammar", source):
            # llama.cpp's name, SGLang's and vLLM's: who knows none of them would answer with anything.
            fields |= {"grammar": source, "ebnf": source, "structured_outputs": {"grammar": source}}
        case Constraint("regex", source):
            fields |= {"regex": source, "structured_outputs": {"regex": source}}
    return {
        "model": model,
        "stream": stream,
        **{key: value for key, value in fields.items() if value is not None},
    }


def content(value: Any, what: str) -> str:
    """Text, or the text parts of a list."""
    if not isinstance(value, list):
        return string(value, what)
    parts = (mapping(part, what) for part in value)
    return "".join(
        string(part.get("text"), what) for part in parts if part.get("type") in ("text", "output_text")
    )


def token_logprob(value: Any) -> TokenLogprob:
    """One entry of a chat answer's logprobs; ids are known from llama-server only, else -1."""
    entry = mapping(value, "logprob")
    tops = tuple(
        TopLogprob(token, logprob, raw, id)
        for token, logprob, raw, id in map(
            _logprob_parts, sequence(entry.get("top_logprobs"), "top_logprobs")
        )
    )
    return TokenLogprob(*_logprob_parts(entry), tops)


def legacy_logprob(token: Any, logprob: Any, top: Any) -> TokenLogprob:
    """One position of the legacy lists, whose alternatives are a mapping of tokens, or null."""
    name = string(token, "token")
    # An echoed prompt's first token follows nothing.
    chosen = math.nan if logprob is None else real(logprob, "logprob")
    alternatives = sorted(
        (
            (real(value, "logprob"), string(key, "token"))
            for key, value in mapping(top, "top_logprobs").items()
        ),
        reverse=True,
    )
    tops = tuple(TopLogprob(key, value, key.encode(), -1) for value, key in alternatives)
    return TokenLogprob(name, chosen, name.encode(), -1, tops)


def _logprob_parts(value: Any) -> tuple[str, float, bytes, int]:
    entry = mapping(value, "logprob")
    token = string(entry.get("token"), "token")
    octets = sequence(entry.get("bytes"), "bytes")
    try:
        raw = bytes(octets) if octets else token.encode()
    except (TypeError, ValueError):
        raise nonsense("bytes") from None
    id = entry.get("id")
    return token, real(entry.get("logprob"), "logprob"), raw, id if isinstance(id, int) else -1


class ToolCalls:
    """Puts the pieces of one choice's tool calls in order.

    Servers leave out `index`, or send 0 for every call, leave out the id, repeat the name, or send the
    arguments as an object.
    """

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self._key: int | None = None
        self._id = ""
        self._count = 0

    def read(self, value: Any) -> list[ToolCallDelta]:
        piece = mapping(value, "tool call")
        function = mapping(piece.get("function"), "function")
        id = string(piece.get("id"), "tool call id")
        name = string(function.get("name"), "function name")
        arguments = function.get("arguments")
        text = string(_json_text(arguments) if isinstance(arguments, dict) else arguments, "arguments")
        if self._begins(piece.get("index"), id, name):
            if not name:
                raise nonsense("tool call without a name")
            self._id = id
            self._count += 1
            return [ToolCallDelta(self._count - 1, id or new_id("call"), name, text, self._choice)]
        return [ToolCallDelta(self._count - 1, None, None, text, self._choice)] if text else []

    def _begins(self, index: Any, id: str, name: str) -> bool:
        """Whether a piece is the first of a call: another index, or the same with another id and a name."""
        if index is None:
            return self._count == 0 or bool(name and (not id or id != self._id))
        key = count(index, "tool call index")
        if self._key is not None and key < self._key:
            raise nonsense("piece of an earlier tool call")
        fresh = self._count == 0 or key != self._key or bool(name and id and id != self._id)
        self._key = key
        return fresh


def _json_text(value: dict[str, Any]) -> str:
    try:
        return compact(value)
    except (ValueError, RecursionError):
        raise nonsense("arguments") from None
