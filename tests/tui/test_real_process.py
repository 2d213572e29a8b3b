"""The chat as a process with the real starter model: alone, beside others, and attached to a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from edgecloud.app.history import History
from tests.app import shell
from tests.app.shell import COMMAND, edgecloud
from tests.support.process import Process

pytestmark = [pytest.mark.slow, pytest.mark.model]

PATIENCE_S = 120


def environment(home: Path) -> dict[str, str]:
    """One user's, whose model says the same each time: drawn answers may go on for minutes."""
    return shell.environment(home, EDGECLOUD_LOCAL__TEMPERATURE="0")


@contextmanager
def chat(home: Path, *arguments: str) -> Iterator[pexpect.spawn]:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "edgecloud", "--offline", "chat", *arguments],
        env=environment(home),
        dimensions=(30, 100),
        timeout=PATIENCE_S,
    )
    try:
        child.expect("Ask anything")
        yield child
    finally:
        child.close(force=True)


def serve(home: Path) -> Process:
    """A server that is ready."""
    arguments = ("--offline", "serve", "--port", "0")
    server = Process(*arguments, module="edgecloud", environment=environment(home), patience_s=PATIENCE_S)
    assert server.url
    return server


def leave(child: pexpect.spawn) -> int:
    child.send("\x11")
    child.expect(pexpect.EOF)
    child.close()
    return int(child.exitstatus)


def kept(home: Path) -> list[tuple[str, str]]:
    history = History(home / "data" / "edgecloud.db")
    history.recover()
    return [
        (stored.status, stored.model)
        for chat in history.list()
        for stored in history.show(chat.id).conversation
        if stored.message.role == "assistant"
    ]


def test_it_answers_with_a_receipt_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    with chat(tmp_path, "--system", "Answer briefly.") as child:
        child.send("What is the capital of France?\r")
        child.expect("first word")
        child.send("Write a very long story about a fox.\r")
        child.expect("answers")
        child.kill(9)
        child.expect(pexpect.EOF)

    assert [status for status, _ in kept(tmp_path)] == ["complete", "interrupted"]
    with chat(tmp_path, "-c") as child:
        child.send("/continue\r")
        child.expect("answers")
        child.send("\x1b")
        child.expect("stopped")
        assert leave(child) == 0


def test_a_running_server_answers_and_nothing_is_loaded_twice(tmp_path: Path) -> None:
    server = Process(
        "serve", "--port", "0", module="edgecloud", environment=environment(tmp_path), patience_s=PATIENCE_S
    )
    assert server.url
    try:
        with chat(tmp_path) as child:
            child.send("Say hi.\r")
            child.expect("first word")
            # Mapped files of the chat's own process: the weights are in the server's.
            maps = Path(f"/proc/{child.pid}/maps")
            assert not maps.exists() or ".gguf" not in maps.read_text()
            assert leave(child) == 0
    finally:
        server.signal(15)
        server.wait()


def test_two_chats_eight_questions_and_a_server_share_one_history(tmp_path: Path) -> None:
    # cases: TC5
    server = Process(
        "serve", "--port", "0", module="edgecloud", environment=environment(tmp_path), patience_s=PATIENCE_S
    )
    assert server.url
    try:
        with chat(tmp_path) as one, chat(tmp_path) as two:
            asks = [
                subprocess.Popen(
                    [*COMMAND, "ask", f"Say {number}.", "--max-tokens", "8"],
                    env=environment(tmp_path),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
                for number in range(8)
            ]
            for child in (one, two):
                child.send("Say hi.\r")
            for child in (one, two):
                child.expect("first word")
            for ask in asks:
                _, errors = ask.communicate(timeout=PATIENCE_S)
                assert (ask.returncode, errors) == (0, b"")
            assert [leave(one), leave(two)] == [0, 0]
    finally:
        server.signal(15)
        server.wait()

    assert [status for status, _ in kept(tmp_path)] == ["complete"] * 10


def test_plain_mode_is_a_conversation(tmp_path: Path) -> None:
    done = edgecloud(
        tmp_path,
        "--offline",
        "chat",
        "--plain",
        stdin=b"Say hi. caf\xe9\n/receipt\n/quit\n",
        EDGECLOUD_LOCAL__TEMPERATURE="0",
        PYTHONIOENCODING="utf-8:strict",
    )

    assert done.returncode == 0
    assert b"-- tokens: " in done.stdout
    assert b"\x1b" not in done.stdout
