"""No test of the chat touches the user's own folders, nor does its terminal decide how things look."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgecloud.app.tui.web.server import ChatServer
from tests.app.shell import environment


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TMUX", raising=False)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatServer]:
    """The chat for browsers, over a scripted engine."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    served = ChatServer([sys.executable, "-m", "tests.support.chat_process", "chat"])
    await served.start()
    yield served
    await served.aclose()
