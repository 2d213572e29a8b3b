"""Computed prefixes in `edgecloud cache` and `edgecloud history`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgecloud.app.history import History
from edgecloud.cache.prefix import PrefixStore
from edgecloud.cache.prefix_key import StateKind
from edgecloud.types import ChatRequest, Message

from .shell import edgecloud

SECRET = b"what was computed for a chat"


@pytest.fixture
def chats(tmp_path: Path) -> list[str]:
    """Two chats, the older first."""
    history = History(tmp_path / "data" / "edgecloud.db")
    turns = [history.begin(ChatRequest((Message("user", text),), door="ask")) for text in ("one", "two")]
    for turn in turns:
        history.finish(turn, None, {0: "stop"}, {}, "complete")
    history.close()
    return [turn.chat_id for turn in turns]


@pytest.fixture
def saved(tmp_path: Path, chats: list[str]) -> list[str]:
    """A prefix of each chat."""
    store = PrefixStore(tmp_path / "data" / "prefixes.db", limit_bytes=1 << 30)
    kind = StateKind("smollm2", "0" * 32, "build", "f16")
    ids = [
        store.save(kind, list(range(first, first + 2000)), SECRET * 1000, chat_id)
        for first, chat_id in enumerate(chats)
    ]
    store.close()
    return [each for each in ids if each is not None]


def test_they_are_listed_and_explained(tmp_path: Path, saved: list[str], chats: list[str]) -> None:
    lines = edgecloud(tmp_path, "cache", "list").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == saved[::-1]
    assert lines[0].endswith(f"0 hits  smollm2  2,000 tokens, 28 kB, of {chats[1]}")
    listed = json.loads(edgecloud(tmp_path, "cache", "list", "--json").stdout)
    assert [each["chats"] for each in listed] == [[chats[1]], [chats[0]]]

    shown = edgecloud(tmp_path, "cache", "show", saved[0][:12]).stdout.decode()
    assert "2,000 tokens" in shown
    assert chats[0] in shown


def test_the_numbers_count_them(tmp_path: Path, saved: list[str]) -> None:
    text = edgecloud(tmp_path, "cache", "stats").stdout.decode()
    assert "2, 56 kB of at most 2.05 GB" in text
    assert json.loads(edgecloud(tmp_path, "cache", "stats", "--json").stdout)["prefixes"]["states"] == 2


def test_one_is_forgotten_and_all_are_cleared(tmp_path: Path, saved: list[str]) -> None:
    done = edgecloud(tmp_path, "cache", "forget", saved[0])
    assert done.stdout == b"Deleted 1 computed prefix.\n"
    gone = edgecloud(tmp_path, "cache", "show", saved[0])
    assert (gone.returncode, b"cache list" in gone.stderr) == (2, True)

    done = edgecloud(tmp_path, "cache", "clear", "--yes", "--json")
    assert json.loads(done.stdout) == {"num_answers": 0, "num_prefixes": 1, "purged": True}
    assert edgecloud(tmp_path, "cache", "list").stdout == b""


def test_a_chat_takes_its_prefixes_with_it(tmp_path: Path, saved: list[str], chats: list[str]) -> None:
    edgecloud(tmp_path, "history", "rm", chats[0])
    listed = json.loads(edgecloud(tmp_path, "cache", "list", "--json").stdout)
    assert [each["id"] for each in listed] == [saved[1]]

    edgecloud(tmp_path, "history", "rm", chats[1])
    everything = b"".join(path.read_bytes() for path in (tmp_path / "data").glob("prefixes.db*"))
    assert SECRET not in everything
