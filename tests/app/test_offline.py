"""Offline, nothing but this machine is connected to and no name is looked up: all sockets are watched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pool.builders import free_port

from .shell import environment

# Runs commands in one process and writes down every connection and every lookup, whoever asks for it.
WATCH = """
import json, sys
seen, results = [], []

def watch(event, args):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        if args[0] not in ("127.0.0.1", "::1"):  # an address is no name
            seen.append(f"lookup {args[0]}")
    elif event in ("socket.connect", "socket.sendto"):
        address = args[1]
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
            seen.append(f"connect {address[0]}")

sys.addaudithook(watch)
from edgecloud.app.cli.main import run
for arguments in json.loads(sys.argv[1]):
    try:
        run(arguments)
    except SystemExit as end:
        results.append(end.code)
with open(sys.argv[2], "w") as file:
    json.dump({"seen": seen, "results": results}, file)
"""
CONFIG = """
[[pool]]
name = "far"
url = "http://pool.example:8000/v1"
model = "far-70b"

[[pool]]
name = "further"
url = "http://192.0.2.1:8000/v1"
model = "further-70b"
replicas = [{url = "http://192.0.2.2:8000/v1"}]
"""


def watched(
    home: Path, *commands: list[str], program: str = WATCH, **extra: str
) -> tuple[list[str], list[int]]:
    """What was connected to or looked up by the commands, and their exit codes."""
    (home / "config.toml").write_text(CONFIG)
    report = home / "report.json"
    command = [sys.executable, "-c", program, json.dumps(commands), str(report)]
    done = subprocess.run(command, env=environment(home, **extra), capture_output=True, timeout=120)
    assert report.exists(), done.stderr.decode()
    told = json.loads(report.read_text())
    return told["seen"], told["results"]


def test_without_offline_the_watch_sees_what_is_connected_to(tmp_path: Path) -> None:
    seen, _ = watched(tmp_path, ["ask", "hi", "-m", "far"])
    assert seen == ["lookup pool.example"]


# cases: R46
def test_offline_nothing_is_connected_to_and_no_name_is_looked_up(tmp_path: Path) -> None:
    short = ["--max-tokens", "2"]
    seen, results = watched(
        tmp_path,
        ["ask", "hi", "--offline", *short],
        ["ask", "hi", "--offline", "--mode", "quality", *short],
        ["ask", "hi", "-m", "far", "--offline"],
        ["ask", "hi", "--mode", "pool", "--offline"],
        ["--offline", "route", "explain", "hi"],
        ["--offline", "pool", "test"],
        ["--offline", "pool", "list"],
        ["--offline", "doctor"],
    )
    assert seen == []
    assert results == [0, 0, 3, 3, 0, 1, 0, 0]


def test_a_private_request_leaves_nothing_that_can_be_seen_outside(tmp_path: Path) -> None:
    seen, results = watched(
        tmp_path,
        ["ask", "hi", "--private", "--max-tokens", "2"],
        ["ask", "my card is 4539 1488 0343 6467", "--mode", "quality", "--max-tokens", "2"],
        ["ask", "hi", "-m", "far", "--private"],
        EDGECLOUD_ROUTER__MODE="quality",
    )
    assert seen == []
    assert results == [0, 0, 3]


# Runs a server beside a client in one process that is watched.
SERVE = """
import http.client, json, os, signal, sys, threading, time

def ask(path, body, **headers):
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
        try:
            connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
            return connection.getresponse().status
        except ConnectionRefusedError:
            time.sleep(0.1)

def client():
    text = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for path, body, headers in (
        ("/v1/chat/completions", {**text, "model": "auto"}, {"x-edgecloud-mode": "quality"}),
        ("/v1/chat/completions", {**text, "model": "far"}, {}),
        ("/v1/chat/completions", {**text, "model": "auto"}, {"x-edgecloud-mode": "pool"}),
        ("/v1/messages", {**text, "model": "further"}, {}),
        ("/v1/embeddings", {"input": "hi", "model": "auto"}, {}),
        ("/route/explain", {**text, "model": "auto"}, {}),
        ("/v1/models", None, {}),
        ("/health/router", None, {}),
    ):
        results.append(ask(path, body, **headers))
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=client, daemon=True).start()
"""


@pytest.mark.slow
def test_a_server_that_a_variable_keeps_offline_connects_to_nothing(tmp_path: Path) -> None:
    port = free_port()
    serve = WATCH.replace("for arguments in", f"PORT = {port}\n{SERVE}\nfor arguments in")
    seen, results = watched(
        tmp_path,
        ["serve", "--port", str(port), "--drain", "0"],
        ["models", "pull", "hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"],
        ["pool", "add", "new", "http://new.example:8000/v1"],
        program=serve,
        EDGECLOUD_OFFLINE="1",
        EDGECLOUD_ROUTER__MODE="quality",
    )
    assert seen == []
    *statuses, served, pulled, added = results
    assert statuses == [200, 403, 403, 403, 200, 200, 200, 200]
    assert served == 0
    assert 0 not in (pulled, added)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
def test_with_the_network_cut_off_the_answer_comes_from_here(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    command = [
        sys.executable,
        "-m",
        "edgecloud",
        "ask",
        "hi",
        "--mode",
        "quality",
        "--json",
        "--max-tokens",
        "2",
    ]
    done = subprocess.run(
        ["unshare", "-rn", *command], env=environment(tmp_path), capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    attempts = json.loads(done.stdout)["receipt"]["attempts"]
    assert [attempt["engine"] for attempt in attempts][-1] == "local"
    assert {attempt["engine"] for attempt in attempts[:-1]} <= {"far", "further"}
