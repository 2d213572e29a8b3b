"""`ask` beside a running server whose settings have meanwhile changed: real processes, a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.support.fake_engine import FakeEngine
from tests.support.live import Live, live_server
from tests.support.process import Process

from .shell import COMMAND, edgecloud, environment

BY_THE_SERVER = "x" * 30
BY_THE_BOX = "Hello, world!"


@pytest.fixture
def box() -> Iterator[Live]:
    """The machine that the pool `box` names; `auto` means it unless the server answers."""
    with live_server(FakeEngine()) as live:
        yield live


@pytest.fixture
def home(tmp_path: Path, box: Live) -> Iterator[Path]:
    """Settings, and a server that was started with them."""
    (tmp_path / "config.toml").write_text(
        f'model = "box"\n[[pool]]\nname = "box"\nurl = "{box.url}/v1"\nmodel = "fake"\n'
    )
    server = Process(0, 0, -1, environment=environment(tmp_path))
    assert server.url
    yield tmp_path
    server.process.kill()
    server.process.wait()


def ask(home: Path, *arguments: str, **extra: str) -> str:
    done = edgecloud(home, "ask", "hi", *arguments, **extra)
    return done.stdout.decode().strip() or done.stderr.decode()


def change(home: Path, *command: str) -> None:
    done = edgecloud(home, *command)
    assert done.returncode == 0, done.stderr


def test_the_server_answers_while_the_settings_are_its_own(home: Path) -> None:
    assert ask(home) == BY_THE_SERVER
    change(home, "config", "set", "local.parallel", "2")
    change(home, "config", "set", "server.ping_s", "3")
    assert ask(home) == BY_THE_SERVER
    assert ask(home, EDGECLOUD_LOG_LEVEL="error") == BY_THE_SERVER


def test_what_has_been_set_since_holds_and_is_named(home: Path) -> None:
    change(home, "config", "set", "history.enabled", "false")
    assert ask(home) == BY_THE_BOX
    change(home, "config", "set", "history.enabled", "true")
    assert edgecloud(home, "history", "list").stdout == b""

    change(home, "config", "set", "history.enabled", "false")

    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], "ask", "hi"],
        env=environment(home),  # type: ignore[arg-type]
        timeout=60,
        dimensions=(24, 300),
    )
    child.expect(rb"other settings \(history\.enabled\), so this runs without it")
    child.expect(BY_THE_BOX)
    child.close(force=True)

    chat = edgecloud(home, "chat", "--plain", stdin=b"hi\n/quit\n").stdout.decode()
    assert "-- The running server has other settings (history.enabled)" in chat
    assert BY_THE_BOX in chat

    change(home, "config", "set", "router.mode", "local")
    assert "the mode is local" in ask(home, "-m", "box")


def test_a_setting_of_the_environment_holds_too(home: Path) -> None:
    assert ask(home, EDGECLOUD_PRIVACY__PATTERNS="false") == BY_THE_BOX


def test_a_pool_that_came_later_is_asked_and_one_that_went_is_not(home: Path, box: Live) -> None:
    change(home, "pool", "add", "late", f"{box.url}/v1", "--model", "fake")
    assert ask(home, "-m", "late") == BY_THE_BOX
    change(home, "config", "set", "model", "late")
    change(home, "pool", "rm", "box")
    assert "There is no model named 'box'" in ask(home, "-m", "box")


def test_status_and_doctor_tell(home: Path) -> None:
    assert b"not those" not in edgecloud(home, "serve", "status").stdout
    change(home, "config", "set", "router.mode", "cheap")

    assert b"not those that hold here now (router.mode)" in edgecloud(home, "serve", "status").stdout
    checks = json.loads(edgecloud(home, "doctor", "--json").stdout)["checks"]
    (server,) = [check for check in checks if check["name"] == "server"]
    assert server["verdict"] == "warn"
    assert "router.mode" in server["detail"]


def test_flags_of_serve_are_no_difference(tmp_path: Path, box: Live) -> None:
    (tmp_path / "config.toml").write_text(f'[[pool]]\nname = "box"\nurl = "{box.url}/v1"\nmodel = "fake"\n')
    flags = ("--port", 0, "--model", "box", "--ctx-size", 512, "--log-level", "error")
    server = Process("serve", *flags, module="edgecloud", environment=environment(tmp_path))
    try:
        assert server.url
        status = edgecloud(tmp_path, "serve", "status").stdout
        assert server.url.encode() in status
        assert b"not those" not in status
    finally:
        server.process.kill()
        server.process.wait()
