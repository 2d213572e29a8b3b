"""`ask` as a process, with the real model: pipes, terminals, signals and broken databases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from edgecloud.app.chats import Chat
from edgecloud.app.history import History

from .shell import COMMAND, edgecloud, environment

pytestmark = pytest.mark.model

SHORT = ("--max-tokens", "8", "--temperature", "0")
LONG = ("Write a long story about a fox.", "--max-tokens", "4000", "--temperature", "0")


def chats(home: Path) -> list[Chat]:
    history = History(home / "data" / "edgecloud.db")
    history.recover()
    found = [history.show(summary.id) for summary in history.list()]
    history.close()
    return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    """Starts `ask` with a pseudo-terminal for everything."""
    children: list[pexpect.spawn[bytes]] = []

    def start(*arguments: str, **extra: str) -> pexpect.spawn[bytes]:
        child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "ask", *arguments],
            env=environment(tmp_path, **extra),  # type: ignore[arg-type]
            timeout=120,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


def test_an_answer_into_a_pipe(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "ask", "Say hello.", *SHORT, stdin=b"")

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.strip()
    assert done.stdout.endswith(b"\n")
    assert b"\x1b" not in done.stdout
    (chat,) = chats(tmp_path)
    assert chat.summary.status == "complete"
    assert chat.messages[-1].message.content.strip() == done.stdout.decode().strip()
    assert chat.messages[-1].model == "smollm2"


def test_two_lines_on_stdin_are_one_prompt_and_json_tells_where_it_is_kept(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "ask", "--json", *SHORT, stdin=b"first line\nsecond line\n")

    answer = json.loads(done.stdout)
    (chat,) = chats(tmp_path)
    assert chat.messages[0].message.content == "first line\nsecond line"
    assert (answer["chat_id"], answer["message_id"]) == (chat.summary.id, chat.messages[-1].id)
    assert answer["id"] == chat.messages[-1].receipt_id == answer["receipt"]["id"]
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["finish_reason"] == "length"


def test_the_same_seed_gives_the_same_text_and_the_chat_goes_on(tmp_path: Path) -> None:
    sampled = ("--temperature", "1", "--seed", "7", "--max-tokens", "8")
    first = edgecloud(tmp_path, "ask", "Tell me a story.", *sampled)
    second = edgecloud(tmp_path, "ask", "Tell me a story.", *sampled)
    assert first.stdout == second.stdout

    more = edgecloud(tmp_path, "ask", "-c", "Go on.", "--json", *SHORT)
    latest, earlier = chats(tmp_path)
    assert json.loads(more.stdout)["chat_id"] == latest.summary.id
    assert [len(chat.messages) for chat in (latest, earlier)] == [4, 2]


def test_nothing_is_kept_without_history(tmp_path: Path) -> None:
    assert edgecloud(tmp_path, "ask", "hi", "--no-history", *SHORT).returncode == 0
    assert edgecloud(tmp_path, "ask", "hi", *SHORT, EDGECLOUD_HISTORY__ENABLED="0").returncode == 0

    assert chats(tmp_path) == []


def test_a_schema_holds(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"],'
        ' "additionalProperties": false}'
    )

    done = edgecloud(
        tmp_path, "ask", "Ada is 36.", "--schema", str(schema), "--temperature", "0", "--max-tokens", "60"
    )
    assert isinstance(json.loads(done.stdout)["age"], int)


def test_a_pipe_that_never_closes_does_not_hang(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "ask", "hi", *SHORT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.wait(120) == 0
    assert process.stdout is not None
    assert process.stdout.read().strip()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def test_a_reader_that_goes_away_ends_the_work(tmp_path: Path) -> None:
    command = " ".join(COMMAND)
    script = f'set -o pipefail; {command} ask "$@" | head -c 1'

    done = subprocess.run(
        ["bash", "-c", script, "bash", *LONG],
        capture_output=True,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, len(done.stdout), done.stderr) == (141, 1, b"")
    (chat,) = chats(tmp_path)
    assert chat.summary.status == "interrupted"
    assert chat.messages[-1].message.content


def test_ctrl_c_keeps_the_partial(tmp_path: Path, terminal: Any) -> None:
    child = terminal(*LONG, "-q")
    child.expect(rb"\w+ \w+ \w+ ")
    shown = child.match.group().decode()
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()

    assert child.exitstatus == 130
    assert b"Traceback" not in child.before
    (chat,) = chats(tmp_path)
    assert chat.summary.status == "interrupted"
    assert shown in chat.messages[-1].message.content


def test_a_killed_process_leaves_its_partial(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "ask", *LONG],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stdout is not None
    shown = os.read(process.stdout.fileno(), 100).decode()
    # What was shown is written within a quarter of a second.
    while not any(chat.messages[-1].message.content for chat in chats(tmp_path)):
        time.sleep(0.05)
    process.kill()
    process.wait()
    process.stdout.close()

    (chat,) = chats(tmp_path)
    assert chat.summary.status == "interrupted"
    assert chat.messages[-1].message.content.startswith(shown)
    assert b"interrupted" in edgecloud(tmp_path, "history", "list").stdout


def test_an_answer_on_a_terminal_ends_in_one_newline(terminal: Any) -> None:
    child = terminal("Say hello.", *SHORT)
    child.expect(pexpect.EOF)
    child.wait()

    assert child.exitstatus == 0
    lines = [line for line in child.before.decode().split("\r\n") if not line.startswith("edgecloud: ")]
    assert lines[-1] == ""
    assert lines[-2] != ""
    assert "\x1b" not in child.before.decode()


@pytest.mark.parametrize(
    "how",
    ["damaged", *(pytest.param(each, marks=pytest.mark.slow) for each in ("a folder", "read-only home"))],
)
def test_a_history_that_cannot_be_written_costs_one_warning(tmp_path: Path, terminal: Any, how: str) -> None:
    database = tmp_path / "data" / "edgecloud.db"
    if how == "damaged":
        database.parent.mkdir()
        database.write_bytes(b"not a database, and long enough to be sure" * 100)
    elif how == "a folder":
        database.mkdir(parents=True)
    else:
        (tmp_path / "data").write_text("a file in the way, which stops root too")

    child = terminal("Say hello.", *SHORT)
    child.expect(pexpect.EOF)
    child.wait()

    assert child.exitstatus == 0
    shown = child.before.decode()
    assert shown.count("edgecloud: warning: This answer is not kept: ") == 1
    assert str(database) in shown
    assert len(shown.strip().splitlines()) >= 2
    piped = edgecloud(tmp_path, "ask", "Say hello.", *SHORT)
    assert piped.returncode == 0
    assert piped.stdout.strip()
    told = piped.stderr.decode()
    assert told.count("edgecloud: warning: This answer is not kept: ") == 1, "scripts are told of a loss too"
    assert told.count("\n") == 1, "of nothing that can be computed again"
    quiet = edgecloud(tmp_path, "ask", "-q", "Say hello.", *SHORT)
    assert (quiet.returncode, quiet.stderr) == (0, b"")


def test_a_database_deleted_mid_answer_does_not_cost_the_answer(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "ask", "Write a long story about a fox.", "--max-tokens", "60", "--temperature", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path),
    )
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 100)
    for file in (tmp_path / "data").glob("edgecloud.db*"):
        file.unlink()
    rest, err = process.communicate()

    assert (process.returncode, err) == (0, b"")
    assert len(first + rest) > 100


@pytest.mark.slow
def test_eight_at_once_share_one_history(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [*COMMAND, "ask", f"hi {number}", *SHORT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(tmp_path),
        )
        for number in range(8)
    ]
    outcomes = [(*process.communicate(), process.returncode) for process in processes]

    assert [(err, code) for _, err, code in outcomes] == [(b"", 0)] * 8
    assert all(out.strip() for out, _, _ in outcomes)
    assert [chat.summary.status for chat in chats(tmp_path)] == ["complete"] * 8


def test_an_unknown_model_is_one_line(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "ask", "hi", "-m", "nope")

    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"edgecloud: There is no model named 'nope'")
    assert done.stderr.count(b"\n") == 1


def test_a_damaged_model_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + b"\xff" * 100)

    done = edgecloud(tmp_path, "ask", "hi", "-m", str(file))
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1


def test_too_long_a_prompt_is_one_line_with_the_numbers(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "ask", stdin=b"word " * 50_000, EDGECLOUD_LOCAL__CTX_SIZE="1024")

    assert (done.returncode, done.stdout) == (1, b"")
    assert b"the context holds 1,024" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_deadline_is_code_5(tmp_path: Path) -> None:
    done = edgecloud(tmp_path, "ask", *LONG, "--timeout", "0.5", "--no-stream")

    assert (done.returncode, done.stdout) == (5, b"")
    assert done.stderr.count(b"\n") == 1


def test_the_question_is_kept_however_short_the_time(tmp_path: Path) -> None:
    assert edgecloud(tmp_path, "ask", "keep this", "--timeout", "0.001").returncode == 5
    assert b"keep this" in edgecloud(tmp_path, "history", "list").stdout


def test_a_distant_model_offline_is_code_3(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        "[[pool]]\nname = 'big'\nurl = 'http://192.0.2.1/v1'\nmodel = 'm'\n"
    )

    done = edgecloud(tmp_path, "ask", "hi", "-m", "big", "--offline")
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.count(b"\n") == 1


SECOND_SIGNAL = """
import asyncio, os, signal, sys
from edgecloud.app.cli.main import run
from edgecloud.app.cli.shell import State

class Stuck:
    aside = ""

    async def chat(self, request):
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                os.kill(os.getpid(), signal.SIGINT)
        yield

    async def aclose(self):
        pass

async def open_gateway(settings):
    return Stuck()

run(["ask", "hi"], State(open_gateway=open_gateway))
"""


def test_a_second_ctrl_c_ends_what_does_not_let_itself_be_cancelled(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SECOND_SIGNAL],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(tmp_path),
        timeout=60,
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
