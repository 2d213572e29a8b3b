"""A real `edgecloud serve` with a home folder of its own, and the commands of the same user beside it."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.app.shell import COMMAND, edgecloud, environment
from tests.support.process import Process
from tests.support.requests import chat, client

LOADING_S = 120.0
"""What loading the model and one token may take where others share the processor."""

STORY = "Write a very long story about a fox who counts everything it sees."


class House:
    """One user's folders. Everything started here is ended by `close`."""

    def __init__(self, home: Path, **extra: str) -> None:
        self.home = home
        self.extra = extra
        self._started: list[subprocess.Popen[Any]] = []

    def serve(self, *flags: object, drain_s: float = 0, **extra: str) -> Process:
        """A serving process; ask its `url` to wait until it serves."""
        arguments = ["serve", "--port", 0, "--ctx-size", 4096, "--drain", drain_s, *flags]
        server = Process(
            *arguments,
            module="edgecloud",
            environment=environment(self.home, **self.extra, **extra),
            patience_s=LOADING_S,
        )
        self._started.append(server.process)
        return server

    def run(self, *arguments: str, stdin: bytes = b"", **extra: str) -> subprocess.CompletedProcess[bytes]:
        """One command to its end."""
        return edgecloud(self.home, *arguments, stdin=stdin, **self.extra, **extra)

    def start(self, *arguments: str, **extra: str) -> subprocess.Popen[bytes]:
        """One command, running."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(self.home, **self.extra, **extra),
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(ValueError):
                        stream.close()


@contextlib.contextmanager
def house(home: Path, **extra: str) -> Iterator[House]:
    """A house, empty at the end."""
    opened = House(home, **extra)
    try:
        yield opened
    finally:
        opened.close()


class Gauges:
    """What `/metrics` says now, by the name of a sample without its labels."""

    def __init__(self, url: str) -> None:
        with client(url) as http:
            text = http.get("/metrics").text
        self.samples: dict[str, float] = {}
        for name, value in re.findall(r"^(\w+)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
            self.samples[name] = self.samples.get(name, 0.0) + float(value)

    def __getitem__(self, name: str) -> float:
        return self.samples.get(f"edgecloud_{name}", 0.0)

    @property
    def at_rest(self) -> bool:
        """Nobody is served, nobody waits, nobody holds a cell."""
        return (
            self["num_requests_running"] == self["num_requests_waiting"] == 0
            # The request for these numbers is one.
            and self["http_requests_in_flight"] <= 1
            and self["kv_cells_used"] == 0
        )


def wait_for(condition: Callable[[], object], patience_s: float = 60.0) -> None:
    """Ask now and then; for conditions that cost a request."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def comes_to_rest(url: str) -> None:
    """Nothing is computed, queued or held, within a minute."""
    wait_for(lambda: Gauges(url).at_rest)


def answers(url: str) -> None:
    """One short answer, as anybody gets it."""
    with client(url) as http:
        answer = http.post("/v1/chat/completions", json=chat(max_tokens=4), timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0


def connect(url: str, *, window: int | None = None) -> socket.socket:
    """A raw connection; `window` bytes are what it takes before it is read."""
    where = urlsplit(url)
    connection = socket.socket()
    if window is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    connection.settimeout(120)
    connection.connect((where.hostname, where.port))
    return connection


def read_until(process: subprocess.Popen[bytes], size: int) -> str:
    """At least `size` bytes of what a command writes, as soon as they are there."""
    assert process.stdout is not None
    data = b""
    while len(data) < size:
        piece = os.read(process.stdout.fileno(), 4096)
        assert piece, f"it ended after {data!r}"
        data += piece
    return data.decode()


def footprint(server: Process) -> tuple[int, int]:
    """Resident bytes and open files of a server."""
    process = psutil.Process(server.process.pid)
    return process.memory_info().rss, process.num_fds()
