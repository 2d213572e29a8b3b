"""Which settings a running server must share with whoever asks it, as hashes that give no value away.

What a setting promises (who may see a prompt, what is kept, what may be spent, how it is answered) holds
whoever computes the answer. How the server uses its machine, and how it listens, is its own business.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from edgecloud.folders import data_dir
from edgecloud.settings import Section, Settings

SERVERS_OWN = frozenset(
    {
        *("server", "chat", "pool_server", "log_level"),
        *(
            f"local.{name}"
            for name in (
                *("ctx_size", "parallel", "threads", "queue_limit", "step_ms", "kv_type"),
                *("prefix_mb", "gpu_layers", "memory_budget_mb", "watchdog_s"),
            )
        ),
    }
)
"""Sections and settings that may differ: the machine's resources, the listening, and what only the terminal
or `pool serve` reads."""

HASH_BYTES = 8


def promise(settings: Settings) -> dict[str, Any]:
    """What a client sends with each call: a salt of its own, and `hashes` by dotted key.

    That it is offline is left out, since each of its requests says so; and so are the pools' keys where one
    is in a variable that this process doesn't have and the server may.
    """
    salt = os.urandom(16)
    carried = ["offline"] if settings.offline else []
    return {"salt": salt.hex(), "hashes": _hashes(settings, salt, without=carried)}


def differences(promised: Mapping[str, Any], settings: Settings) -> tuple[str, ...]:
    """Keys of a client's promise that the server's settings don't keep, in the order of the settings.

    Raises `ValueError`, `KeyError` or `TypeError` for what is no promise.
    """
    ours = _hashes(settings, bytes.fromhex(promised["salt"]))
    found = [key for key, hash in promised["hashes"].items() if ours.get(key) != hash]
    # Where the pools differ, so do their keys, which is no news.
    return tuple(key for key in found if key != "pool.api_key" or "pool" not in found)


def _hashes(settings: Settings, salt: bytes, *, without: Collection[str] = ()) -> dict[str, str]:
    return {
        key: hashlib.blake2b(
            json.dumps(value, sort_keys=True).encode(), key=salt, digest_size=HASH_BYTES
        ).hexdigest()
        for key, value in _values(settings)
        if key not in without
    }


def _values(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Dotted keys and plain values; secrets are in the clear here, and nowhere else."""
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if name in SERVERS_OWN:
            continue
        if not isinstance(value, Section):
            yield name, _plain(value)
            continue
        for part in type(value).model_fields:
            key = f"{name}.{part}"
            if key not in SERVERS_OWN:
                yield key, _plain(getattr(value, part))
    keys = [_plain(entry.api_key) for entry in settings.pool]
    if not any(key is not None and key.startswith("env:") for key in keys):
        yield "pool.api_key", keys
    # The same file with another home is another history, and other models.
    yield "EDGECLOUD_HOME", str(data_dir().absolute())


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case BaseModel():
            # Pools' keys are compared by themselves.
            names = [name for name in type(value).model_fields if name != "api_key"]
            return {name: _plain(getattr(value, name)) for name in names}
        case tuple():
            return [_plain(item) for item in value]
        case _:
            return value
