"""All settings in one model: flags over `EDGECLOUD_*` environment over `config.toml` over defaults.

Nested keys use two underscores in the environment: `EDGECLOUD_SERVER__PORT=9000`; lists are separated
by commas or written as JSON, tables as JSON. An unknown key or a wrong type is a `ConfigError` that names
the key, where it came from and the fix. A variable that resembles no setting is left alone, being some other
program's as likely as not, and told of by `stray_variables`. A secret is `SecretStr` and never printed;
written `keyring:NAME` it is the password that the system keyring has for the service `edgecloud` under that
name, written `env:NAME` the value of that environment variable.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo

from edgecloud.errors import ConfigError
from edgecloud.pool_names import check_pool_names
from edgecloud.toml_file import changed, line_of, parse, read_text, replace_text

APP = "edgecloud"
ENV_PREFIX = "EDGECLOUD_"
FOLDER_VARIABLES = ("EDGECLOUD_CONFIG", "EDGECLOUD_HOME", "EDGECLOUD_RUNTIME")
MASK = "********"
TYPED = "what you typed"
"""Where a value is that has no place yet."""


def _from_elsewhere(value: object) -> object:
    if isinstance(value, str) and value.startswith("env:"):
        variable = value.removeprefix("env:")
        if not os.environ.get(variable):
            raise ConfigError(f"The secret {value!r} needs the environment variable {variable}: set it.")
        return os.environ[variable]
    return _from_keyring(value)


def _from_elsewhere_if_there(value: object) -> object:
    """As above, but a variable that isn't set is left to whoever needs the secret: one server's key must not
    keep everything else from working.
    """
    is_missing = isinstance(value, str) and value.startswith("env:") and not os.environ.get(value[4:])
    return value if is_missing else _from_elsewhere(value)


def _from_keyring(value: object) -> object:
    if not isinstance(value, str) or not value.startswith("keyring:"):
        return value
    name = value.removeprefix("keyring:")
    try:
        import keyring
    except ImportError:
        raise ConfigError(
            f"The secret {value!r} needs the system keyring: `pip install keyring`, or give it itself."
        ) from None
    try:
        password = keyring.get_password(APP, name)
    except keyring.errors.KeyringError as error:
        raise ConfigError(f"The secret {value!r} cannot be read: {error}.") from error
    if password is None:
        raise ConfigError(f"The keyring has no secret {name!r}: `keyring set {APP} {name}` puts it there.")
    return password


Secret = Annotated[SecretStr, BeforeValidator(_from_elsewhere)]
LaterSecret = Annotated[SecretStr, BeforeValidator(_from_elsewhere_if_there)]


def _hosts(value: str) -> str:
    """Whether the addresses are ours is seen when they are listened on; a URL or nothing never is."""
    if not all(re.fullmatch(r"[^\s/]+", name.strip()) for name in value.split(",")):
        raise ValueError("be an address like 127.0.0.1, or several with commas")
    return value


Hosts = Annotated[str, AfterValidator(_hosts)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalSettings(Section):
    """The engine on this machine. 0 means 'choose for me'."""

    ctx_size: int = Field(
        0, ge=0, description="tokens of KV shared by all sequences; 0: from the model and free memory"
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
    languages: tuple[str, ...] = Field(
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

    url: str
    weight: float = Field(1.0, gt=0, description="capacity beside the other replicas'")


class ChatSettings(Section):
    theme: str = Field("dark", description="dark, light, ansi, or a theme of Textual's")
    keys: dict[str, str] = Field(default_factory=dict, description="keys by the id of what they do")


class PoolEntry(Section):
    """One OpenAI-compatible endpoint, or several replicas of it."""

    name: str
    url: str
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
    currency: str = Field("USD", min_length=3, max_length=3, description="of the prices")
    context: int = Field(0, ge=0, description="tokens of context; 0: as its model list says")
    lacks: tuple[Literal["tools", "json", "images", "logprobs", "continue_final"], ...] = Field(
        (), description="what it can't do"
    )
    timeout_s: float = Field(600.0, gt=0, description="seconds for one whole answer")
    connect_timeout_s: float = Field(10.0, gt=0)
    first_byte_timeout_s: float = Field(
        300.0, gt=0, description="seconds until the answer begins, queue and prompt included"
    )
    idle_timeout_s: float = Field(60.0, gt=0, description="seconds of silence in the middle of an answer")


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

    currency: str = Field(
        "USD", min_length=3, max_length=3, description="of the budgets, and of what is shown"
    )
    rates: dict[str, float] = Field(
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
    aliases: dict[str, str] = Field(default_factory=dict, description="names over HTTP for models")
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


# ---------------------------------------------------------------------------------------------- folders


def config_path() -> Path:
    """`config.toml`, or what `EDGECLOUD_CONFIG` names."""
    override = os.environ.get("EDGECLOUD_CONFIG")
    return Path(override) if override else Path(platformdirs.user_config_dir(APP)) / "config.toml"


def data_dir() -> Path:
    """Where databases and pulled models live; `EDGECLOUD_HOME` overrides."""
    override = os.environ.get("EDGECLOUD_HOME")
    return Path(override) if override else Path(platformdirs.user_data_dir(APP))


def runtime_dir() -> Path:
    """Where the running server's socket lives, private to the user; `EDGECLOUD_RUNTIME` overrides."""
    override = os.environ.get("EDGECLOUD_RUNTIME")
    if override:
        return Path(override)
    if sys.platform == "darwin":
        return Path(platformdirs.user_runtime_dir(APP))
    # Not what platformdirs falls back to, a guessable name in /tmp, which another user may have taken.
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    return folder / APP if os.access(folder, os.W_OK) else data_dir() / "run"


# ---------------------------------------------------------------------------------------------- loading

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value that somebody gave, and where: a line of the file (whose text it has), a variable, a flag."""

    key: Key
    value: Any
    source: Literal["file", "environment", "flag"]
    where: str
    text: str = ""

    def where_is(self, key: Key) -> str:
        """The place of something in the value: its own line, where the file has one for it."""
        for length in range(len(key), len(self.key), -1):
            if line := line_of(key[:length], self.text):
                return f"{config_path()}, line {line}"
        return self.where


@dataclass(frozen=True, slots=True)
class Origin:
    """One setting as `config show` prints it: dotted key, plain value (secrets masked), source."""

    key: str
    value: Any
    source: Literal["default", "file", "environment", "flag"]
    where: str
    description: str


def load(overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of this run. `overrides` are flags by dotted key; a None among them was not given.

    Raises `ConfigError`.
    """
    return _build(_assignments(overrides or {}))


def origins(overrides: Mapping[str, Any] | None = None) -> tuple[Origin, ...]:
    """Every setting with where its value came from. Raises `ConfigError`."""
    assignments = _assignments(overrides or {})
    settings = _build(assignments)
    given = {assignment.key: assignment for assignment in assignments}
    rows = []
    for key, field in _leaves(Settings):
        value: Any = settings
        for part in key:
            value = getattr(value, part)
        # Entries of a table like `aliases` may come from several places; the last one speaks for it.
        sources = [given[name] for name in given if name[: len(key)] == key]
        source = sources[-1] if sources else None
        rows.append(
            Origin(
                ".".join(key),
                plain(value),
                source.source if source else "default",
                source.where if source else "",
                field.description or "",
            )
        )
    return tuple(rows)


def stray_variables() -> tuple[str, ...]:
    """Variables that begin as ours do, and mean no setting nor anything like one."""
    return tuple(name for name, key, _ in _variables(os.environ) if _field(key) is None and not _close(key))


def set_value(key: str, value: object, *, check: Callable[[Settings], None] | None = None) -> None:
    """Write one setting to `config.toml`, keeping comments and layout; text is read as in the environment.

    Nothing is written unless the whole file is then valid and `check`, given the file's settings as they
    would be, raises nothing. Raises `ConfigError`.
    """
    path = config_path().resolve()  # through a link to somebody's dotfiles
    parts = tuple(key.split("."))
    field = _field(parts)
    if field is None:
        raise _unknown(parts, "`config set`")
    if isinstance(value, str):
        value = _from_text(field, value, Assignment(parts, value, "flag", TYPED))

    def change(document: Any) -> None:
        table = document
        for part in parts[:-1]:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[parts[-1]] = value

    text = changed(read_text(path), change, path)
    # What was typed stands on no line of the file yet.
    assignments = [
        replace(given, where=TYPED, text="") if given.key[: len(parts)] == parts else given
        for given in _flatten(tomllib.loads(text), text, path)
    ]
    settings = _build(assignments)
    if check is not None:
        check(settings)
    replace_text(path, text)


def rewrite(change: Callable[[Any], None]) -> None:
    """Change `config.toml` by a function of its document (see `changed`), keeping comments and layout.

    Nothing is written unless the whole file is then valid. Raises `ConfigError`, and what `change` raises.
    """
    path = config_path().resolve()
    text = changed(read_text(path), change, path)
    _build(_flatten(tomllib.loads(text), text, path))
    replace_text(path, text)


def plain(value: Any) -> Any:
    """A setting's value as JSON has it, secrets masked."""
    match value:
        case SecretStr():
            return MASK
        case BaseModel():
            return {name: plain(getattr(value, name)) for name in type(value).model_fields}
        case tuple():
            return [plain(item) for item in value]
        case _:
            return value


def _assignments(overrides: Mapping[str, Any]) -> list[Assignment]:
    """Everything that was given, the strongest last."""
    path = config_path()
    text = read_text(path)
    document = parse(text, path)
    flags = [
        Assignment(tuple(key.split(".")), value, "flag", f"the flag for {key}")
        for key, value in overrides.items()
        if value is not None
    ]
    return [*_flatten(document, text, path), *_environment(os.environ), *flags]


def _flatten(document: Mapping[str, Any], text: str, path: Path, parents: Key = ()) -> list[Assignment]:
    found = []
    for name, value in document.items():
        key = (*parents, name)
        if isinstance(value, dict):
            found += _flatten(value, text, path, key)
        else:
            line = line_of(key, text)
            where = f"{path}, line {line}" if line else str(path)
            found.append(Assignment(key, value, "file", where, text))
    return found


def _environment(environment: Mapping[str, str]) -> Iterator[Assignment]:
    for name, key, text in _variables(environment):
        field = _field(key)
        if field is None:
            if _close(key):
                raise _unknown(key, f"the environment variable {name}", spell=_variable)
            continue
        given = Assignment(key, text, "environment", f"the environment variable {name}")
        yield Assignment(key, _from_text(field, text, given), given.source, given.where)


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, Key, str]]:
    """Variables that may be settings: name, key, text."""
    for name, text in environment.items():
        if name.startswith(ENV_PREFIX) and name not in FOLDER_VARIABLES and text:
            yield name, tuple(name.removeprefix(ENV_PREFIX).lower().split("__")), text


def _build(assignments: Sequence[Assignment]) -> Settings:
    tree: dict[str, Any] = {}
    for assignment in assignments:
        branch = tree
        for part in assignment.key[:-1]:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise _wrong(assignment.key[:-1], "be a table", branch, assignments)
        branch[assignment.key[-1]] = _tuples(assignment.value)
    try:
        # Strict: a port written as "8484" or true is a mistake in a file that has types.
        settings = Settings.model_validate(tree, strict=True)
    except ValidationError as error:
        raise _explain(error, assignments) from error
    check_pool_names(
        [entry.name for entry in settings.pool],
        settings.aliases,
        settings.extra_models,
        lambda number: _fix(_where(("pool", str(number), "name"), assignments)),
    )
    return settings


def _tuples(value: Any) -> Any:
    match value:
        case list():
            return tuple(_tuples(item) for item in value)
        case dict():
            return {key: _tuples(item) for key, item in value.items()}
        case _:
            return value


def _from_text(field: FieldInfo, text: str, given: Assignment) -> Any:
    """A value written as text, in the type that the setting has."""
    import json

    annotation: Any = field.annotation
    is_list = get_origin(annotation) is tuple
    if is_list and not text.lstrip().startswith(("[", "{")):
        return [item.strip() for item in text.split(",") if item.strip()]
    if is_list or get_origin(annotation) is dict:
        try:
            return json.loads(text)
        except ValueError:
            raise ConfigError(f"{'.'.join(given.key)} must be JSON{_fix(given.where)}.") from None
    try:
        return TypeAdapter(annotation).validate_strings(text)
    except ValidationError as error:
        raise _wrong(given.key, _requirement(error.errors()[0]["msg"]), text, [given]) from None


# ------------------------------------------------------------------------------------------- what is known


def _leaves(section: type[BaseModel], parents: Key = ()) -> Iterator[tuple[Key, FieldInfo]]:
    """Every setting of the model with its key, in order."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _leaves(field.annotation, (*parents, name))
        else:
            yield (*parents, name), field


def _field(key: Key) -> FieldInfo | None:
    """The setting with this key; an entry of a table of names (`aliases.gpt-4o`) is one too."""
    leaves = dict(_leaves(Settings))
    table = leaves.get(key[:-1])
    if table is not None and get_origin(table.annotation) is dict:
        return FieldInfo(annotation=get_args(table.annotation)[1])
    return leaves.get(key)


def _siblings(key: Key) -> list[Key]:
    """The keys that an unknown one may have meant: those of its own entry in a list, else all."""
    leaves = dict(_leaves(Settings))
    entries = leaves.get(key[:1])
    if entries is not None and len(key) == 3 and get_origin(entries.annotation) is tuple:
        return [(*key[:2], name) for name in get_args(entries.annotation)[0].model_fields]
    return list(leaves)


def _variable(key: str) -> str:
    return ENV_PREFIX + key.replace(".", "__").upper()


def _dotted(key: str) -> str:
    return repr(key)


# ---------------------------------------------------------------------------------------------- sentences


def _explain(error: ValidationError, assignments: Sequence[Assignment]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    key = tuple(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return _unknown(key, _where(key, assignments))
    if first["type"] == "missing":
        return ConfigError(f"{'.'.join(key)} is missing: give it in {_where(key, assignments)}.")
    return _wrong(key, _requirement(first["msg"]), first["input"], assignments)


def _requirement(message: str) -> str:
    """`be a valid integer`, out of what pydantic says."""
    return re.sub(r"^(Value error, )?((Input|String) should )?", "", message).partition(", unable")[0]


def _wrong(key: Key, requirement: str, value: object, assignments: Sequence[Assignment]) -> ConfigError:
    shown = f", not {value!r}" if isinstance(value, str | int | float) and not _is_secret(key) else ""
    fix = _fix(_where(key, assignments))
    return ConfigError(f"{'.'.join(key)} must {requirement}{shown[:100]}{fix}.")


def _fix(where: str) -> str:
    """What was typed a moment ago needs no telling where it is."""
    return "" if where == TYPED else f": change it in {where}"


def _is_secret(key: Key) -> bool:
    return any(part in ("api_key", "api_keys", "key") for part in key)


def _unknown(key: Key, where: str, *, spell: Any = _dotted) -> ConfigError:
    close = _close(key)
    hint = f"did you mean {spell(close)}?" if close else "`edgecloud config show` lists them all."
    return ConfigError(f"There is no setting {'.'.join(key)[:80]!r} (in {where}); {hint}")


def _close(key: Key) -> str | None:
    """The setting that an unknown key most likely means."""
    name, known = ".".join(key), [".".join(leaf) for leaf in _siblings(key)]
    close = [
        *(leaf for leaf in known if leaf.split(".")[-1] == key[-1]),
        *(leaf for leaf in known if leaf.startswith(f"{name}.")),
        *difflib.get_close_matches(name, known, n=1),
    ]
    return close[0] if close else None


def _where(key: Key, assignments: Sequence[Assignment]) -> str:
    """The place of the last assignment that gave the key, something in it, or something that holds it."""
    for assignment in reversed(assignments):
        length = min(len(key), len(assignment.key))
        if assignment.key[:length] == key[:length]:
            return assignment.where_is(key)
    return str(config_path())
