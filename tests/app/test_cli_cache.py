"""`edgecloud cache`."""

from __future__ import annotations

import json
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecloud.cache.answers import AnswerCache
from edgecloud.cache.key import key_of
from edgecloud.cache.records import Answer, Embedded
from edgecloud.types import ChatRequest, ChoiceDone, Done, Message, Start, TextDelta, Usage

from .shell import edgecloud


@pytest.fixture
def kept(tmp_path: Path) -> list[str]:
    """Two kept answers, the older first."""
    cache = AnswerCache(tmp_path / "data" / "cache.db")
    ids = []
    for prompt, text in (
        ("Why is the sky blue?", "Light scatters.\x1b[2J"),
        ("How does a magnet work?", "It pulls."),
    ):
        request = ChatRequest((Message("user", prompt),), door="ask")
        events = (
            Start("local", "smollm2", 5),
            TextDelta(text),
            ChoiceDone(0, "stop"),
            Done(Usage(5, 3)),
        )
        entry_id, _ = cache.store(key_of(request), None, Answer(events, "local:smollm2", chat_id="chat-1"))
        assert entry_id is not None
        ids.append(entry_id)
    cache.close()
    return ids


def test_list(tmp_path: Path, kept: list[str]) -> None:
    lines = edgecloud(tmp_path, "cache", "list").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == kept[::-1]
    assert lines[1].endswith("local:smollm2  Why is the sky blue?")

    (only,) = json.loads(edgecloud(tmp_path, "cache", "list", "-n", "1", "--json").stdout)
    assert (only["id"], only["answer"]) == (kept[1], "It pulls.")


def test_show(tmp_path: Path, kept: list[str]) -> None:
    shown = edgecloud(tmp_path, "cache", "show", kept[0][:12]).stdout.decode()
    assert "> Why is the sky blue?\n\nLight scatters." in shown
    assert "\x1b" not in shown
    assert "chat-1" in shown


def test_what_is_not_there_is_said(tmp_path: Path, kept: list[str]) -> None:
    done = edgecloud(tmp_path, "cache", "show", "ans-zzzz")
    assert done.returncode == 2
    assert b"cache list" in done.stderr


def test_forget(tmp_path: Path, kept: list[str]) -> None:
    done = edgecloud(tmp_path, "cache", "forget", "--wrong", kept[0])

    assert done.stdout == b"Deleted 1 kept answer.\n"
    assert json.loads(edgecloud(tmp_path, "cache", "stats", "--json").stdout)["blamed"] == 1
    everything = b"".join(file.read_bytes() for file in (tmp_path / "data").iterdir() if file.is_file())
    assert b"Why is the sky blue" not in everything
    assert b"How does a magnet" in everything


def test_clear_asks_first(tmp_path: Path, kept: list[str]) -> None:
    refused = edgecloud(tmp_path, "cache", "clear")
    assert refused.returncode == 2
    assert b"--yes" in refused.stderr

    done = edgecloud(tmp_path, "cache", "clear", "--yes", "--json")
    assert json.loads(done.stdout) == {"num_answers": 2, "num_prefixes": 0, "purged": True}
    assert edgecloud(tmp_path, "cache", "list").stdout == b""


def test_export(tmp_path: Path, kept: list[str]) -> None:
    lines = edgecloud(tmp_path, "cache", "export").stdout.decode().splitlines()
    assert [json.loads(line)["id"] for line in lines] == kept[::-1]

    target = tmp_path / "kept.jsonl"
    edgecloud(tmp_path, "cache", "export", "-o", str(target))
    assert target.read_text().splitlines() == lines
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_an_export_of_nothing_has_no_line(tmp_path: Path) -> None:
    assert edgecloud(tmp_path, "cache", "export").stdout == b""


def test_stats(tmp_path: Path, kept: list[str]) -> None:
    text = edgecloud(tmp_path, "cache", "stats").stdout.decode()
    assert text.startswith("kept answers           2, ")
    assert "1 are allowed" in text
    assert "from a probability of 0.9" in text


def test_stats_of_every_key(tmp_path: Path, kept: list[str]) -> None:
    with closing(AnswerCache(tmp_path / "data" / "cache.db")) as cache:
        scopes: tuple[dict[str, Any], ...] = ({"tenant": "4f2a"}, {"door": "http"})
        for fields in scopes:
            request = ChatRequest(messages=(Message("user", "How do magnets work?"),), **fields)
            cache.similar(key_of(request), Embedded(np.eye(1, 8, dtype=np.float32)[0], "space"), ("local",))
    told = edgecloud(tmp_path, "cache", "stats").stdout.decode()
    assert "the same for the key 4f2a" in told
    assert "the same for HTTP without a key" in told
    listed = json.loads(edgecloud(tmp_path, "cache", "stats", "--json").stdout)["scopes"]
    assert [each["scope"] for each in listed] == ["http", "key:4f2a"]
