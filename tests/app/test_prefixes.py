"""Saved prefixes as the settings want them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecloud.app.prefixes import open_prefixes, saved_prefixes
from edgecloud.cache.prefix_key import StateKind
from edgecloud.settings import Settings

KIND = StateKind("toy", "0" * 32, "build", "f16")
TOKENS = list(range(200))


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))
    return tmp_path


def settings(**sections: dict[str, object]) -> Settings:
    return Settings.model_validate(sections)


@pytest.mark.parametrize(
    "off", [{"cache": {"prefix_mb": 0}}, {"history": {"enabled": False}}], ids=["no disk", "no history"]
)
def test_nothing_is_saved_where_the_settings_say_so(off: dict[str, dict[str, object]]) -> None:
    assert saved_prefixes(settings(**off)) is None


def test_the_file_is_made_when_it_is_first_needed(data: Path) -> None:
    saved = saved_prefixes(settings())
    assert saved is not None
    assert not (data / "prefixes.db").exists()
    saved.write(lambda store: None)
    saved.close()
    assert (data / "prefixes.db").exists()


def test_a_megabyte_is_a_million_bytes() -> None:
    store = open_prefixes(settings(cache={"prefix_mb": 0.5}))
    assert store.stats().limit_bytes == 500_000
    store.close()


@pytest.mark.parametrize(("retention_days", "days"), [(0, 30), (2, 2), (90, 30)])
def test_a_state_lives_no_longer_than_the_history_that_it_is_of(retention_days: int, days: int) -> None:
    store = open_prefixes(settings(history={"retention_days": retention_days}))
    store.save(KIND, TOKENS, b"state", "chat-a")
    (entry,) = store.entries()
    store.close()
    assert entry.expires - entry.used == pytest.approx(days * 86_400)


def test_with_a_key_everything_is_encrypted_and_deleting_needs_no_key(data: Path) -> None:
    pytest.importorskip("cryptography")
    store = open_prefixes(settings(cache={"prefix_key": "open sesame"}))
    store.save(KIND, TOKENS, b"a state in the clear", "chat-a")
    store.close()
    assert b"in the clear" not in b"".join(path.read_bytes() for path in data.glob("prefixes.db*"))

    store = open_prefixes(settings())
    assert store.find(KIND, TOKENS) is None
    assert store.delete_chats(["chat-a"]).num_states == 1
    store.close()
