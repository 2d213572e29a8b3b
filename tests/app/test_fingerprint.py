"""What a server and its clients must have alike, and what never leaves a process in the clear."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from edgecloud.app.fingerprint import SERVERS_OWN, differences, promise
from edgecloud.settings import (
    HistorySettings,
    LocalSettings,
    PoolEntry,
    PrivacySettings,
    RouterSettings,
    Section,
    ServerSettings,
    Settings,
)

BOX = PoolEntry(name="box", url="http://box/v1", model="m", api_key=SecretStr("the-secret-of-box"))


@pytest.mark.parametrize(
    ("mine", "differing"),
    [
        (Settings(), ()),
        (Settings(router=RouterSettings(mode="local")), ("router.mode",)),
        (Settings(history=HistorySettings(enabled=False)), ("history.enabled",)),
        (Settings(privacy=PrivacySettings(regions=("EU",))), ("privacy.regions",)),
        (Settings(local=LocalSettings(temperature=0.0)), ("local.temperature",)),
        (Settings(model="other", aliases={"a": "b"}), ("model", "aliases")),
        (Settings(pool=(BOX,)), ("pool",)),
    ],
)
def test_what_a_setting_promises_must_be_alike(mine: Settings, differing: tuple[str, ...]) -> None:
    assert differences(promise(mine), Settings()) == differing


def test_how_the_server_listens_and_uses_its_machine_is_its_own_business() -> None:
    busy = Settings(
        server=ServerSettings(port=9000, api_keys=(SecretStr("k"),)),
        local=LocalSettings(ctx_size=512, parallel=2, threads=1, prefix_mb=0),
        log_level="debug",
    )
    assert differences(promise(Settings()), busy) == ()


def test_being_offline_is_carried_by_each_request_and_a_server_that_is_does_more_than_asked() -> None:
    assert differences(promise(Settings(offline=True)), Settings()) == ()
    assert differences(promise(Settings()), Settings(offline=True)) == ("offline",)


def test_a_new_key_of_a_pool_is_seen_and_one_that_only_the_server_has_is_left_to_it() -> None:
    def with_key(key: str) -> Settings:
        return Settings(pool=(BOX.model_copy(update={"api_key": SecretStr(key)}),))

    assert differences(promise(with_key("new")), with_key("old")) == ("pool.api_key",)
    assert differences(promise(with_key("env:NOT_HERE")), with_key("old")) == ()
    assert differences(promise(with_key("new")), with_key("env:NOT_THERE")) == ("pool.api_key",)


def test_another_home_is_another_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promised = promise(Settings())
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))
    assert differences(promised, Settings()) == ("EDGECLOUD_HOME",)


def test_no_value_is_sent_and_no_two_promises_look_alike() -> None:
    first, second = promise(Settings(pool=(BOX,))), promise(Settings(pool=(BOX,)))
    assert "the-secret-of-box" not in json.dumps(first)
    assert not set(first["hashes"].values()) & set(second["hashes"].values())


def test_what_is_left_out_are_settings_that_there_are() -> None:
    known = set(Settings.model_fields)
    for name in Settings.model_fields:
        section = getattr(Settings(), name)
        if isinstance(section, Section):
            known |= {f"{name}.{part}" for part in type(section).model_fields}
    assert known >= SERVERS_OWN
