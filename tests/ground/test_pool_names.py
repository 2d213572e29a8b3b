"""Names of servers in the settings file: what they may be, and the line of one that may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecloud.config.loading import load
from edgecloud.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    return tmp_path / "config.toml"


def entries(*names: str) -> str:
    return "".join(f"[[pool]]\nurl = 'http://x/v1'\nmodel = 'm'\nname = {name!r}\n" for name in names)


@pytest.mark.parametrize("name", ["big", "gpu-box", "llama-3.1_70B", "7b"])
def test_what_is_a_plain_word_is_a_name(config: Path, name: str) -> None:
    config.write_text(entries(name))

    assert [entry.name for entry in load().pool] == [name]


@pytest.mark.parametrize(
    "name",
    [
        *("smollm2", "SmolLM2", "minilm", "auto", "local", "pool", "nobody", "gpt-4o", "wide"),
        *("", "a b", "hf:x/y", "../x", "a\n", "-m", "über"),
    ],
)
def test_a_name_that_means_something_else_is_refused_with_its_line(config: Path, name: str) -> None:
    config.write_text(
        "extra_models = ['wide']\naliases = {'gpt-4o' = 'big'}\n"
        + entries("big")
        + entries(name).replace("'", '"')
    )

    with pytest.raises(ConfigError, match=r"line 10\.$") as refused:
        load()
    assert repr(name) in refused.value.message


def test_two_servers_of_one_name_are_refused(config: Path) -> None:
    config.write_text(entries("big", "Big"))

    with pytest.raises(ConfigError, match=r"'Big' of a pool is there twice: change it in .*, line 8\.$"):
        load()
