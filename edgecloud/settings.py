"""Every setting there is, with its type, its bounds and its default, in one frozen model.

`edgecloud.config` reads them from flags, environment and `config.toml`, and writes them.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

from edgecloud.secret import LaterSecret, Secret


def _hosts(value: str) -> str:
    """Whether the addresses are ours is seen when they are listened on; a URL or nothing never is."""
    if not all(re.fullmatch(r"[^\s/]+", name.strip()) for name in value.split(",")):
        raise ValueError("be an address like 127.0.0.1, or several with commas")
    return value


Hosts = Annotated[str, AfterValidator(_hosts)]


def _url(value: str) -> str:
    """Where nobody could ever be asked is seen here; whether somebody answers there, when it is asked."""
    try:
        url = urlsplit(value)
        can_be_one = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port of six digits, half an IPv6 address
        can_be_one = False
    if not can_be_one or re.search(r"\s", value):
        raise ValueError("look like http://host:8000/v1")
    if "@" in url.netloc:
        raise ValueError("hold no password: put the key into api_key")
    if url.path.rstrip("/").endswith(("/chat/completions", "/models")):
        raise ValueError("stop before /chat/completions or /models, usually at /v1")
    return value


Url = Annotated[str, AfterValidator(_url)]


def _language(value: str) -> str:
    if not re.fullmatch("[a-z]{2}", value):
        raise ValueError("be a code of two letters, like en or de")
    return value


Language = Annotated[str, AfterValidator(_language)]

Currency = Annotated[str, Field(min_length=3, max_length=3), AfterValidator(str.upper)]
"""ISO 4217; `usd` is no other money than `USD`."""


LEAST_CONTEXT = 256
"""Tokens: llama.cpp makes no smaller memory."""


def _context(value: int) -> int:
    if 0 < value < LEAST_CONTEXT:
        raise ValueError(f"be 0 or at least {LEAST_CONTEXT}")
    return value


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalSettings(Section):
    """The engine on this machine. 0 means 'choose for me'."""

    ctx_size: Annotated[int, AfterValidator(_context)] = Field(
        0,
        ge=0,
        description="tokens of KV shared by all sequences, 256 or more; 0: from the model and free memory",
    )
    parallel: int = Field(8, ge=1, le=256, description="sequences decoded together")
    threads: int = Field(0, ge=0, le=1024, description="0: what this machine can really give")
    queue_limit: int = Field(128, ge=1, description="requests waiting before 429")
    step_ms: int = Field(
        300, ge=5, description="target step time while prefill shares a step with running streams"
    )
    kv_type: Literal["f16", "q8_0", "f32"] = "f16"
    prefix_mb: int = Field(
        512, ge=0, description="main memory for the computed context of finished answers; 0: keep none there"
    )
    gpu_layers: int = Field(-1, description="layers offloaded when the binding has a GPU; -1: all")
    memory_budget_mb: int = Field(0, ge=0, description="for all loaded models; 0: from free memory")
    watchdog_s: float = Field(
        30.0, gt=0, description="without a finished step for this long the engine is not healthy"
    )
    chat_template: str = Field("", description="file with a chat template that replaces the model's own")
    temperature: float = Field(0.8, ge=0, le=2)
    top_k: int = Field(40, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    min_p: float = Field(0.05, ge=0, le=1)


class KeyEntry(Section):
    """An API key with a name and limits of its own."""

    name: str = Field(min_length=1)
    key: Secret
    engines: tuple[str, ...] = Field(
        (), description="names it may be answered by, `local` among them; empty: any"
    )
    tokens_per_day: int | None = Field(None, ge=0, description="asked and answered; null: no limit")


class ServerSettings(Section):
    host: Hosts = "127.0.0.1"
    port: int = Field(8484, ge=0, le=65535)
    api_keys: tuple[Secret, ...] = ()
    keys: tuple[KeyEntry, ...] = Field((), description="keys with limits of their own")
    cors_origins: tuple[str, ...] = Field(("localhost",), description="'localhost', exact origins, or '*'")
    allowed_hosts: tuple[str, ...] = Field((), description="Host names answered besides loopback ones")
    body_limit_mb: float = Field(16.0, gt=0)
    ping_s: float = Field(12.0, gt=0, description="seconds of silence before a stream sends a ping")
    drain_s: float = Field(30.0, ge=0, description="how long SIGTERM waits for running answers")
    journal: bool = Field(True, description="keep HTTP requests in the history too")
    metrics: bool = True

    @property
    def all_keys(self) -> tuple[SecretStr, ...]:
        """Every key that opens the door."""
        return (*self.api_keys, *(entry.key for entry in self.keys))


class HistorySettings(Section):
    enabled: bool = True
    retention_days: int = Field(0, ge=0, description="0: for ever")


class CacheSettings(Section):
    """Answers that are kept and given again, and what local models computed."""

    enabled: bool = Field(True, description="for `ask` and chat; off where history is off")
    http: bool = Field(False, description="for HTTP requests too, where no header says otherwise")
    max_wrong_per_100_requests: float = Field(
        1.0, ge=0, le=100, description="wrong answers from similar prompts that are put up with; 0: none"
    )
    lifetime_days: float = Field(30.0, gt=0, description="how long an answer keeps that time doesn't change")
    size_mb: float = Field(256.0, gt=0, description="what is worth least goes first")
    languages: tuple[Language, ...] = Field(
        ("en",), description="ISO 639-1 codes of the languages that the embedder knows"
    )
    prefix_mb: float = Field(
        2048.0, ge=0, description="disk for what local models computed for chats; 0: keep none there"
    )
    prefix_key: Secret | None = Field(
        None, description="encrypts it; best `keyring:NAME`, needs the package cryptography"
    )


class ReplicaEntry(Section):
    """One more address that serves the same model."""

    url: Url
    weight: float = Field(1.0, gt=0, description="capacity beside the other replicas'")


class ChatSettings(Section):
    theme: str = Field("dark", description="dark, light, ansi, or a theme of Textual's")
    keys: dict[str, str] = Field(default_factory=dict, description="keys by the id of what they do")


class PoolEntry(Section):
    """One OpenAI-compatible endpoint, or several replicas of it."""

    name: str
    url: Url
    model: str
    api_key: LaterSecret | None = None
    local: bool = Field(False, description="true only if it computes on this machine")
    weight: float = Field(1.0, gt=0, description="capacity of url beside the replicas'")
    replicas: tuple[ReplicaEntry, ...] = Field((), description="more addresses of the same model")
    region: str = Field("", description="where it computes, for the rules that name regions")
    price_in: float = Field(0.0, ge=0, description="money for a million prompt tokens")
    price_out: float = Field(0.0, ge=0, description="money for a million answered tokens")
    price_cached: float | None = Field(
        None, ge=0, description="money for a million prompt tokens it had cached; null: as price_in"
    )
    currency: Currency = Field("USD", description="of the prices")
    context: int = Field(0, ge=0, description="tokens of context; 0: as its model list says")
    lacks: tuple[Literal["tools", "json", "images", "logprobs", "continue_final"], ...] = Field(
        (), description="what it can't do"
    )
    continues: bool = Field(
        False, description="that it goes on with a message that was begun, where nobody would expect it to"
    )
    timeout_s: float = Field(600.0, gt=0, description="seconds for one whole answer")
    connect_timeout_s: float = Field(10.0, gt=0)
    first_byte_timeout_s: float = Field(
        300.0, gt=0, description="seconds until the answer begins, queue and prompt included"
    )
    idle_timeout_s: float = Field(60.0, gt=0, description="seconds of silence in the middle of an answer")

    @field_validator("continues")
    @classmethod
    def _one_word(cls, value: bool, info: ValidationInfo) -> bool:
        if value and "continue_final" in info.data.get("lacks", ()):
            raise ValueError("be false where lacks says continue_final")
        return value

    @property
    def may_continue(self) -> bool:
        """Whether it is expected to go on with a message that was begun, as long as it doesn't tell: hosted
        APIs, which cost money, do not unless the entry says so.
        """
        free = self.price_in == self.price_out == 0
        return self.continues or (free and "continue_final" not in self.lacks)


class PoolServerSettings(Section):
    """A pool that this machine serves (`edgecloud pool serve`). 0 means 'choose for me'."""

    model: str = Field("", description="name, .gguf file or folder of safetensors; empty: what `model` says")
    served_name: str = Field("", description="the name that clients ask for; empty: the model's own")
    port: int = Field(8000, ge=0, le=65535)
    device: Literal["auto", "cuda", "cpu"] = "auto"
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0: what this machine can really give")
    context: int = Field(0, ge=0, description="most tokens of one request; 0: what the model was made for")
    kv_mb: int = Field(0, ge=0, description="memory for computed context; 0: from what is free")
    kv_type: Literal["auto", "float32", "float16", "bfloat16", "int8", "fp8"] = Field(
        "auto", description="how computed context is kept; auto: as fine as the weights"
    )
    host_mb: int = Field(0, ge=0, description="main memory for context that gives way; 0: compute it again")
    block_size: int = Field(16, ge=1, le=64, description="tokens in a block of context: 1, 2, 4, up to 64")
    max_running: int = Field(64, ge=1, le=4096, description="answers decoded together")
    token_budget: int = Field(0, ge=0, description="tokens computed in one step, prompts included")
    max_waiting: int = Field(1024, ge=1, description="requests in the queue before 429")
    policy: Literal["priority", "fcfs", "deadline", "sjf", "fair"] = Field(
        "priority", description="who goes next; among equals, who came first"
    )
    slo_ttft_s: float = Field(1.0, gt=0, description="first token within this: counted as good")
    slo_tpot_s: float = Field(0.05, gt=0, description="and every other token within this")
    watchdog_s: float = Field(30.0, gt=0, description="a step that takes longer is a stuck engine")
    chat_template: str = Field("", description="file with a chat template that replaces the model's own")


class BudgetSettings(Section):
    """What may be spent. A request that might go beyond is refused before anything is sent."""

    currency: Currency = Field("USD", description="of the budgets, and of what is shown")
    rates: dict[Currency, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="what one unit of another currency is worth, by its code"
    )
    per_day: float | None = Field(None, ge=0)
    per_month: float | None = Field(None, ge=0)
    per_chat: float | None = Field(None, ge=0)
    per_key_day: float | None = Field(None, ge=0, description="for each API key")
    per_key_month: float | None = Field(None, ge=0, description="for each API key")
    answer_tokens: int = Field(
        4096, ge=1, description="the longest answer that a budget pays for where the request sets no limit"
    )

    @property
    def is_limited(self) -> bool:
        """Whether any limit is set."""
        limits = (self.per_day, self.per_month, self.per_chat, self.per_key_day, self.per_key_month)
        return any(limit is not None for limit in limits)


class RouterSettings(Section):
    """How an engine is chosen. Money is in `budget.currency`."""

    mode: Literal["quality", "balanced", "cheap", "local", "pool"] = Field(
        "balanced", description="what `auto` aims at"
    )
    answer_value: float = Field(0.01, ge=0, description="money that a right answer is worth")
    second_value: float = Field(0.0001, ge=0, description="money that a second of waiting costs")
    slo_s: float = Field(
        20.0, gt=0, description="seconds an answer should take; the slow tenth beyond it counts as waiting"
    )
    wait_s: float = Field(
        30.0, ge=0, description="longest wait for engines that rest after failures, without a deadline"
    )
    cascade: bool = Field(
        True, description="draft here first where the local model may be good enough, and judge the beginning"
    )
    floor: float = Field(
        0.6, ge=0, le=1, description="chance of being right from which a local draft is kept"
    )
    hold_back: int = Field(
        28, ge=8, le=64, description="tokens of a draft that are judged before any is shown"
    )
    attempts: int = Field(4, ge=1, le=16, description="most engines and replicas asked for one answer")
    hedge: float = Field(
        0.0,
        ge=0,
        le=0.2,
        description="share of requests asked a second time elsewhere where the first token is late",
    )
    continue_elsewhere: bool = Field(
        False, description="let another engine go on where one breaks off in the middle of an answer"
    )


def _regex(value: object) -> object:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"be a regular expression ({error})") from None
    return value


class PrivacyRule(Section):
    """A pattern of one's own: text that it finds stays on this machine."""

    name: str = Field(min_length=1)
    pattern: Annotated[str, BeforeValidator(_regex)]


class PrivacySettings(Section):
    """What never leaves this machine. A rule that matches binds the whole chat from then on."""

    patterns: bool = Field(True, description="look for personal data and secrets (English and Chinese)")
    exemplars: bool = Field(
        True, description="look for what reads like internal documents, customer data or trade secrets"
    )
    ignore: tuple[str, ...] = Field((), description="labels found that may leave: 'pii:email', 'pii', 'like'")
    paths: tuple[str, ...] = Field((), description="globs of files whose content, and mention, stays here")
    rules: tuple[PrivacyRule, ...] = Field((), description="patterns of your own: name and pattern")
    regions: tuple[str, ...] = Field((), description="regions that prompts may be sent to; empty: any")


class Settings(Section):
    """The whole configuration, frozen. `Settings()` is the defaults alone; `load` reads the rest."""

    model: str = Field("smollm2", min_length=1, description="the model that `auto` means")
    embedder: str = Field("minilm", min_length=1)
    offline: bool = False
    aliases: dict[str, str] = Field(default_factory=dict, description="more names for models and servers")
    extra_models: tuple[str, ...] = Field((), description="more models that `serve` offers by name")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    local: LocalSettings = LocalSettings()
    server: ServerSettings = ServerSettings()
    history: HistorySettings = HistorySettings()
    cache: CacheSettings = CacheSettings()
    chat: ChatSettings = ChatSettings()
    budget: BudgetSettings = BudgetSettings()
    router: RouterSettings = RouterSettings()
    privacy: PrivacySettings = PrivacySettings()
    pool: tuple[PoolEntry, ...] = ()
    pool_server: PoolServerSettings = PoolServerSettings()

    def meant(self, name: str) -> str:
        """What is asked for by a name: what its alias leads to, through others if need be."""
        for _ in self.aliases:
            name = self.aliases.get(name, name)
        return name
