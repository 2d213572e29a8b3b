"""What flows through the house: requests in, events out, one receipt at the end.

Frozen, slotted dataclasses with no behaviour but derived facts. Doors translate into them, engines work on
them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["auto", "quality", "balanced", "cheap", "local", "pool"]
FinishReason = Literal["stop", "length", "tool_calls"]
Door = Literal["ask", "chat", "http", "api"]
CacheVerdict = Literal["off", "miss", "exact", "semantic"]


def new_id(prefix: str) -> str:
    """A fresh identifier such as `req-3f…`: the prefix, a dash and 24 hexadecimal digits."""
    return f"{prefix}-{uuid.uuid4().hex[:24]}"


# ------------------------------------------------------------------------------------------------ the request


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model made. `arguments` is JSON text, kept as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. Text parts are already joined into `content`; `images` are data URIs.

    `role` is `system`, `user`, `assistant`, `tool`, or a custom role that a template may know; doors turn
    `developer` into `system`.
    """

    role: str
    content: str = ""
    images: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class NamedTool:
    """`tool_choice` that forces one function."""

    name: str


ToolChoice = Literal["auto", "none", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `None` means the engine's default; `temperature` 0 is greedy.

    Ranges are checked at the doors: temperature 0..2, top_p (0, 1], min_p [0, 1], top_k >= 0 (0 is off),
    presence and frequency penalty -2..2, repeat_penalty > 0 (1 is off), seed within int64, logit_bias
    -100..100 by token id.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the answer must match: any JSON object, a JSON schema (as JSON text), a GBNF grammar, or a regular
    expression (as a whole). `param` is the field of the request that asked for it.

    'calls' are tool calls that a template makes an answer be, for engines of our own: a Lark grammar whose
    rules `arguments0`, `arguments1` … are left to `schemas`, the JSON text of a list of schemas.
    """

    kind: Literal["json", "schema", "grammar", "regex", "calls"]
    source: str = ""
    schemas: str = ""
    param: str = field(default="response_format", compare=False)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request for one prompt. Either `messages` (rendered by the model's template) or a raw `prompt`.

    `prompt` is text or token ids. `max_tokens` is clamped to what is left of the context. `logprobs` is
    None for off, else how many alternatives (0..20) come with each token. `echo` returns the prompt first
    (completions only; with `max_tokens` 0 it only scores). `deadline_s` is a duration in seconds from when
    the gateway takes the request, the whole chain included. `fresh` refuses kept answers; `cache` says
    whether any may be given or kept at all, None what the settings say for the door. Kept answers older than
    `max_age_s` are not given; `only_kept` wants a kept answer or none. `priority` is vLLM's:
    smaller goes first. Before `min_tokens` no token may end the answer. `files` are the absolute paths of
    what was attached, whose text is in the messages. `tenant` is a short hash of the API key. Where the
    answer is not `streamed`, nobody sees it before its end, and pieces of it may come as one event.
    """

    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    model: str = "auto"
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    echo: bool = False
    constraint: Constraint | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    continue_final: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float | None = None
    priority: int = 0
    mode: Mode = "auto"
    private: bool = False
    fresh: bool = False
    cache: bool | None = None
    max_age_s: float | None = None
    only_kept: bool = False
    offline: bool = False
    journal: bool = True
    streamed: bool = True
    files: tuple[str, ...] = ()
    chat_id: str | None = None
    parent_id: str | None = None
    tenant: str | None = None
    door: Door = "api"
    id: str = field(default_factory=lambda: new_id("req"))

    @property
    def is_chat(self) -> bool:
        return self.prompt is None


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """Texts, or token ids of the embedder's own vocabulary, to turn into vectors."""

    inputs: tuple[str | tuple[int, ...], ...]
    model: str = "auto"
    dimensions: int | None = None
    tenant: str | None = None
    id: str = field(default_factory=lambda: new_id("emb"))


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """One L2-normalised float32 vector per input, in order. `model` is what answered; it read only the
    beginning of `num_truncated` inputs.
    """

    vectors: tuple[tuple[float, ...], ...]
    model: str
    prompt_tokens: int
    num_truncated: int = 0


# ------------------------------------------------------------------------------------------------- the events


@dataclass(frozen=True, slots=True)
class TopLogprob:
    token: str
    logprob: float
    bytes: bytes
    token_id: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token under the model's raw distribution (before temperature and penalties), natural log.

    `bytes` are the token's own, which may be half a character; `token` is them decoded with replacement.
    """

    token: str
    logprob: float
    bytes: bytes
    token_id: int
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """The request is valid, rendered, tokenized, fits and is queued; from here on errors come after a 200.

    The gateway adds what a stream's headers tell: the receipt's `id`, the `reason` for this engine, and what
    came of looking for a kept answer.
    """

    engine: str
    model: str
    prompt_tokens: int
    variant: str = ""
    id: str = ""
    reason: str = ""
    cache: CacheInfo | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of one choice, never empty. `num_tokens` tokens are accounted to it (stop text held back included
    later).
    """

    text: str
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    num_tokens: int = 1


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str
    index: int = 0
    num_tokens: int = 1


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call. The first piece of each `call_index` carries `id` and `name`; later ones only
    `arguments`.
    """

    call_index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class ChoiceDone:
    """One choice ended. `stop` is the stop string that ended it, if one did."""

    index: int
    reason: FinishReason
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know; never part of the answer. `history` is a loss; `storage` is none yet:
    what can't be kept is tried again, or can be computed again.
    """

    kind: Literal["rerouted", "continued", "cached", "truncated", "history", "storage", "loading"]
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, all choices together. `cached_tokens` of the prompt were not computed again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: waiting for a place, computing the prompt, to the first token, and drawing the rest."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    """An engine's last event."""

    usage: Usage
    timings: Timings = Timings()


@dataclass(frozen=True, slots=True)
class Attempt:
    engine: str
    outcome: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What came of looking for a kept answer. On a hit `similarity` is the cosine of the two questions,
    `probability` that of their having the same answer, `age_s` the answer's age in seconds.
    """

    verdict: CacheVerdict = "off"
    similarity: float | None = None
    age_s: float | None = None
    entry_id: str | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an answer came from, why, how fast and at what price; the same everywhere it is shown."""

    id: str
    engine: str
    model: str
    variant: str
    mode: Mode
    reason: str
    attempts: tuple[Attempt, ...]
    cache: CacheInfo
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_s: float
    ttft_s: float
    total_s: float
    tokens_per_s: float
    cost: float = 0.0
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Finish:
    """The gateway's last event. `chat_id` and `message_id` name the journalled answer, if there is one."""

    usage: Usage
    receipt: Receipt
    chat_id: str | None = None
    message_id: str | None = None


Delta = TextDelta | ReasoningDelta | ToolCallDelta | ChoiceDone
EngineEvent = Start | Delta | Notice | Done
Event = Start | Delta | Notice | Finish


# -------------------------------------------------------------------------------- what is known of models


@dataclass(frozen=True, slots=True)
class Loading:
    """A model on its way into memory: `done` of the `total` bytes of its weights."""

    model: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; `context` is in tokens."""

    context: int
    chat: bool = True
    completions: bool = True
    tools: bool = False
    json: bool = True
    images: bool = False
    logprobs: bool = True
    continue_final: bool = True


@dataclass(frozen=True, slots=True)
class KvUse:
    """The KV memory of a loaded model, in cells of one token each; `parked_bytes` of main memory keep
    finished sequences for the next turn. `preemptions` counts sequences put back for want of room since the
    model was loaded; `saved` and `restored` count prefixes that went to disk and came from there since then.
    """

    model: str
    cells: int
    used: int
    preemptions: int = 0
    parked_bytes: int = 0
    saved: int = 0
    saved_bytes: int = 0
    restored: int = 0
    restored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """`ok` means it can decode now; `detail` is the sentence for a person."""

    ok: bool
    detail: str = ""
    running: int = 0
    waiting: int = 0
    kv: tuple[KvUse, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One line of a model list. `aliases` can be sent as `model` too; `images` says whether it takes them.
    `size` is that of its file and `memory` what it takes while it is loaded, in bytes; 0 where that is not
    known, as `parameters`, how many it has. `continues`: whether it goes on with a message that was begun.
    """

    id: str
    kind: Literal["auto", "chat", "embedding"]
    engine: str = ""
    aliases: tuple[str, ...] = ()
    context: int | None = None
    created: int = 0
    loaded: bool = False
    detail: str = ""
    size: int = 0
    memory: int = 0
    images: bool = False
    parameters: int = 0
    continues: bool = False
