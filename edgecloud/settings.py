"""All settings in one model: flags over `EDGECLOUD_*` environment over `config.toml` over defaults.

Nested keys use two underscores in the environment: `EDGECLOUD_SERVER__PORT=9000`. An unknown key or a wrong type is a `ConfigError` that
names the key, where it came from and the fix. Secrets are `SecretStr` and never printed.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, ClassVar, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from edgecloud.errors import ConfigError

APP = "edgecloud"


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
        100, ge=5, description="target step time while prefill shares a step with running streams"
    )
    kv_type: Literal["f16", "q8_0", "f32"] = "f16"
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


class ServerSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(8484, ge=0, le=65535)
    api_keys: tuple[SecretStr, ...] = ()
    cors_origins: tuple[str, ...] = Field(("localhost",), description="'localhost', exact origins, or '*'")
    allowed_hosts: tuple[str, ...] = Field((), description="Host names answered besides loopback ones")
    body_limit_mb: float = Field(16.0, gt=0)
    ping_s: float = Field(12.0, gt=0, description="seconds of silence before a stream sends a ping")
    drain_s: float = Field(30.0, ge=0, description="how long SIGTERM waits for running answers")
    journal: bool = Field(True, description="keep HTTP requests in the history too")
    metrics: bool = True


class HistorySettings(Section):
    enabled: bool = True
    retention_days: int = Field(0, ge=0, description="0: for ever")


class PoolEntry(Section):
    """One OpenAI-compatible endpoint."""

    name: str
    url: str
    model: str
    api_key: SecretStr | None = None
    local: bool = Field(False, description="true only if it computes on this machine")
    timeout_s: float = Field(600.0, gt=0, description="seconds for one whole answer")
    connect_timeout_s: float = Field(10.0, gt=0)
    first_byte_timeout_s: float = Field(
        300.0, gt=0, description="seconds until the answer begins, queue and prompt included"
    )
    idle_timeout_s: float = Field(60.0, gt=0, description="seconds of silence in the middle of an answer")


class Settings(BaseSettings):
    """The whole configuration, frozen once loaded."""

    model_config = SettingsConfigDict(
        env_prefix="EDGECLOUD_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    model: str = Field("smollm2", description="the model that `auto` means")
    embedder: str = "minilm"
    offline: bool = False
    aliases: dict[str, str] = Field(default_factory=dict, description="names over HTTP for models")
    extra_models: tuple[str, ...] = Field((), description="more models that `serve` offers by name")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    local: LocalSettings = LocalSettings()
    server: ServerSettings = ServerSettings()
    history: HistorySettings = HistorySettings()
    pool: tuple[PoolEntry, ...] = ()

    # Set by `load` for the one construction, since pydantic-settings asks the class, not the instance.
    _file: ClassVar[dict[str, Any]] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings


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
    return Path(override) if override else Path(platformdirs.user_runtime_dir(APP))
