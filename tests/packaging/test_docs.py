"""What the documentation names exists, and has the defaults that it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from edgecloud.app.cli.main import edgecloud as command_line
from edgecloud.app.proxy.app import create_app
from edgecloud.config.loading import origins, plain
from edgecloud.settings import PoolEntry, Settings
from tests.support.fake_gateway import fake_gateway

from .conftest import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
COMMAND = re.compile(r"(?:^|[`/| ])edgecloud ((?:[a-z]+ ?)+)", re.MULTILINE)
SETTING = re.compile(r"^\| `([\w.]+)` \| (?:`([^`]*)`)? ?\|", re.MULTILINE)
PATH = re.compile(r"`(?:(?:POST|GET) )?(/[\w/{}.]+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    def is_known(words: list[str]) -> bool:
        command: click.Command | None = command_line
        for word in words:
            if not isinstance(command, click.Group):
                break
            command = command.get_command(click.Context(command), word)
            if command is None:
                return False
        return True

    named = [words.split() for words in COMMAND.findall("\n".join(code_of(page.read_text())))]
    assert [words for words in named if not is_known(words)] == []


def code_of(text: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [*blocks, *re.findall(r"`(edgecloud [^`]+)`", text)]


def test_the_configuration_page_has_every_setting_with_its_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    expected: dict[str, Any] = {each.key: each.value for each in origins() if each.key != "pool"}
    for name, field in PoolEntry.model_fields.items():
        expected[f"pool.{name}"] = None if field.is_required() else plain(field.default)

    told = SETTING.findall((ROOT / "docs" / "configuration.md").read_text())

    assert {key: json.loads(value or "null") for key, value in told} == expected


def test_every_path_of_the_server_page_is_a_route() -> None:
    app = create_app(fake_gateway(), Settings())
    routes = {getattr(route, "path", "") for route in app.routes}
    named = set(PATH.findall((ROOT / "docs" / "api.md").read_text().split("## What to expect")[0]))

    assert {path.replace("{id}", "{model:path}") for path in named} - routes == set()


def test_nothing_tells_anybody_to_install_us_from_an_index_that_has_us_not() -> None:
    rooms = ("app", "cache", "docs", "edgecloud", "kernels", "local_engine", "pool", "router")
    files = [file for room in rooms for kind in ("*.py", "*.md") for file in (ROOT / room).rglob(kind)]
    told = re.compile(r"pip install \W?edgecloud\b")
    assert len(files) > 200
    assert [str(file) for file in [*files, *ROOT.glob("*.md")] if told.search(file.read_text())] == []
