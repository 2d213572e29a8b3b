"""`ask` in one process after the other, with the real model: the next turn computes its own tokens only."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.app.shell import COMMAND, edgecloud, environment

# About 1,500 tokens: on any processor long enough to be worth saving.
TEXT = b"The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 90
SHORT = ("--max-tokens", "4", "--temperature", "0", "--fresh", "--json")


def ask(home: Path, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
    done = edgecloud(home, "ask", *arguments, *SHORT, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, b"")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def saved(home: Path) -> list[dict[str, Any]]:
    listed = json.loads(edgecloud(home, "cache", "list", "--json").stdout)
    return [each for each in listed if each["id"].startswith("pre-")]


def test_the_next_turn_goes_on_from_the_disk_and_the_chat_takes_it_along(tmp_path: Path) -> None:
    first = ask(tmp_path, "What does the dog do?", stdin=TEXT)
    assert first["receipt"]["cached_tokens"] == 0
    assert saved(tmp_path)[0]["chats"] == [first["chat_id"]]

    second = ask(tmp_path, "-c", "And the fox?")
    receipt = second["receipt"]
    assert receipt["cached_tokens"] > 1400
    assert receipt["prompt_tokens"] - receipt["cached_tokens"] < 40

    edgecloud(tmp_path, "history", "rm", first["chat_id"])
    assert saved(tmp_path) == []


def test_without_history_nothing_is_saved(tmp_path: Path) -> None:
    ask(tmp_path, "--no-history", "What does the dog do?", stdin=TEXT)
    assert saved(tmp_path) == []


def test_switched_off_no_file_is_made(tmp_path: Path) -> None:
    done = edgecloud(
        tmp_path, "ask", "What does the dog do?", *SHORT, stdin=TEXT, EDGECLOUD_CACHE__PREFIX_MB="0"
    )
    assert done.returncode == 0
    assert not (tmp_path / "data" / "prefixes.db").exists()


def test_who_is_killed_while_it_writes_leaves_a_file_that_works(tmp_path: Path) -> None:
    arguments = [*COMMAND, "ask", "What does the dog do?", *SHORT]
    path = tmp_path / "data" / "prefixes.db"
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment(tmp_path)
    ) as process:
        assert process.stdin is not None
        process.stdin.write(TEXT)
        process.stdin.close()
        # The moment the row is there, before the process can be done with its chunks.
        while process.poll() is None and not _has_row(path):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)

    answer = ask(tmp_path, "-c", "And the fox?")
    assert answer["receipt"]["completion_tokens"] == 4
    assert len(saved(tmp_path)) == 1


def _has_row(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            return bool(connection.execute("SELECT 1 FROM states").fetchone())
    except sqlite3.Error:
        return False
