"""`edgecloud serve` as a real process, with real signals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from edgecloud.app.cli.serve import require_key_beyond_loopback, serve
from edgecloud.config.loading import load
from edgecloud.errors import ConfigError, EdgeCloudError
from edgecloud.http.server import listen
from tests.support.live import PATIENCE_S, eventually
from tests.support.process import Process
from tests.support.requests import chat, client, frames


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))


@pytest.fixture
def running() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


def start(running: list[Process], *arguments: object) -> Process:
    running.append(Process(*arguments))
    return running[-1]


class Asking(threading.Thread):
    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.text = url, ""
        self.start()

    def run(self) -> None:
        with (
            client(self.url) as http,
            http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as answer,
        ):
            for piece in answer.iter_text():
                self.text += piece


# cases: C177
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_drains_and_exits_with_0(running: list[Process], number: int) -> None:
    server = start(running, 0, 20, -1)
    asking = Asking(server.url)
    eventually(lambda: asking.text.count("content") > 2)
    server.signal(number)
    asking.join(PATIENCE_S)
    assert frames(asking.text)[-2]["choices"][0]["finish_reason"] == "stop"
    assert server.wait() == 0
    assert "Traceback" not in server.text


# cases: C177
def test_two_signals_stop_now_and_say_so_to_who_waits(running: list[Process]) -> None:
    server = start(running, 0, 1000, 5)
    asking = Asking(server.url)
    eventually(lambda: asking.text.count("content") > 2)
    server.signal(signal.SIGTERM)
    with pytest.raises(TimeoutError):
        wait_for_exit(server, 0.5)
    server.signal(signal.SIGTERM)
    asking.join(PATIENCE_S)
    assert frames(asking.text)[-2]["error"]["code"] == "server_stopping"
    assert server.wait() == 0
    assert "Traceback" not in server.text


def wait_for_exit(server: Process, seconds: float) -> None:
    try:
        server.process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


# cases: C178
def test_without_time_to_drain_it_ends_at_once_and_leaves_no_child(running: list[Process]) -> None:
    server = start(running, 0, 0, 5)
    asking = Asking(server.url)
    eventually(lambda: asking.text.count("content") > 2)
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not [child for child in children if child.is_running()]


def test_it_says_in_one_line_where_it_is_and_writes_no_key_anywhere(running: list[Process]) -> None:
    key = "SECRET123-of-the-server"
    server = start(running, 0, 0, -1, key)
    line = next(line for line in server.url and server.lines if "edgecloud serves" in line)
    assert f"OPENAI_BASE_URL={server.url}/v1" in line
    with client(server.url, headers={"authorization": f"Bearer {key}"}) as http:
        assert http.get("/v1/models").status_code == 200
        assert http.get(f"/v1/models/{key}").status_code == 404
        assert http.post("/v1/chat/completions", json={"messages": key}).status_code == 400
        metrics = http.get("/metrics").text
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    # cases: P50
    assert "SECRET123" not in server.text
    assert "SECRET123" not in metrics
    assert "path=/v1/models" in server.text


def test_status_and_stop_find_the_running_server(running: list[Process]) -> None:
    server = start(running, 0, 0, -1)
    url = server.url
    status = CliRunner().invoke(serve, ["status"], catch_exceptions=False)
    assert url in status.output
    assert str(server.process.pid) in status.output
    stopped: list[int] = []
    reaper = threading.Thread(target=lambda: stopped.append(server.process.wait(PATIENCE_S)))
    reaper.start()
    result = CliRunner().invoke(serve, ["stop"], catch_exceptions=False)
    reaper.join()
    assert result.exit_code == 0
    assert stopped == [0]


@pytest.mark.parametrize("command", ["status", "stop"])
def test_without_a_server_they_say_so(command: str) -> None:
    with pytest.raises(EdgeCloudError, match="No edgecloud server is running"):
        CliRunner().invoke(serve, [command], catch_exceptions=False)


def test_what_is_lost_at_the_end_is_told(running: list[Process], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LOST", "The history lacks the end of an answer.")
    server = start(running, 0, 5, -1)
    assert server.url
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "edgecloud: warning: The history lacks the end of an answer.\n" in server.text


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} .* in use.*--port"):
            CliRunner().invoke(serve, ["--port", str(port)], catch_exceptions=False)


def test_a_port_that_our_own_server_has_is_said_to_be(running: list[Process]) -> None:
    url = start(running, 0, 0, -1).url

    with pytest.raises(ConfigError) as refused:
        CliRunner().invoke(serve, ["--port", url.rpartition(":")[2]], catch_exceptions=False)

    assert refused.value.message.startswith(f"edgecloud serves {url} already: `edgecloud serve stop` ends it")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "127.0.0.1,0.0.0.0", "box.lan"])
def test_the_network_is_not_let_in_without_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        require_key_beyond_loopback(load({"server.host": host}))
    require_key_beyond_loopback(load({"server.host": host, "server.api_keys": ("k",)}))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.1,::1"])
def test_loopback_needs_no_key(host: str) -> None:
    require_key_beyond_loopback(load({"server.host": host}))


# cases: C009
def test_two_addresses_share_one_port() -> None:
    sockets = listen("127.0.0.1,127.0.0.2", 0)
    ports = {listener.getsockname()[1] for listener in sockets}
    for listener in sockets:
        listener.close()
    assert len(sockets) == 2
    assert len(ports) == 1


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_is_not_ours_is_one_sentence(host: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(host)):
        listen(host, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen anywhere")
def test_a_port_that_needs_rights_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="rights"):
        listen("127.0.0.1", 1)
