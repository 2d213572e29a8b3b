"""What the cache would do with a request, looked up without a trace."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.client import connect
from edgecloud.app.socket_server import SocketServer
from edgecloud.cache import experience
from edgecloud.errors import StorageError
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest
from tests.support.fake_engine import FakeEngine

from .test_memory import COLD, SKY, AlikeEmbedder, CountingEmbedder, ask, collect, remembering

RESET = "How do I reset my password?"
ALIKE = "How can I reset my password, please?"


def named(text: str = SKY, **fields: Any) -> ChatRequest:
    """A question for one model, which no router is loaded for."""
    return ask(text, model="fake", **fields)


def rows(folder: Path) -> list[str]:
    """All that stands in `cache.db`."""
    with closing(sqlite3.connect(folder / "cache.db")) as connection:
        return list(connection.iterdump())


async def test_the_same_question_a_similar_one_and_another_are_foreseen_as_they_come_out(
    tmp_path: Path,
) -> None:
    async with remembering(tmp_path, embedder=AlikeEmbedder()) as gateway:
        await collect(gateway, named(RESET, sampling=COLD))
        for text, verdict in ((RESET, "exact"), (ALIKE, "semantic"), ("Who wrote Faust?", "miss")):
            request = named(text, sampling=COLD)
            story = await gateway.explain(request)
            assert story["cache"]["verdict"] == verdict
            got = (await collect(gateway, replace(request, journal=False)))[-1].receipt.cache  # type: ignore[union-attr]
            assert (got.verdict, got.entry_id) == (verdict, story["cache"]["entry_id"])
            assert got.probability == pytest.approx(story["cache"]["probability"])


async def test_a_hit_is_said_in_a_sentence(tmp_path: Path) -> None:
    async with remembering(tmp_path, embedder=AlikeEmbedder()) as gateway:
        await collect(gateway, named(RESET))
        same = (await gateway.explain(named(RESET)))["sentences"]
        alike = (await gateway.explain(named(ALIKE)))["sentences"]
        other = (await gateway.explain(named()))["sentences"]
    assert same[-1] == "But the same question was answered 0 s ago: that kept answer would be given."
    assert alike[-1].startswith("But a similar question (96% alike) was answered")
    assert len(other) == 1


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cache": False}, "they are switched off for it"),
        ({"door": "http"}, "they are switched off for it"),
        ({"fresh": True}, "it asks for a fresh answer"),
        ({"n": 2}, "several answers were asked for, which are to differ"),
    ],
)
async def test_where_none_is_looked_for_it_is_said_why(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    async with remembering(tmp_path) as gateway:
        await collect(gateway, named())
        story = await gateway.explain(named(**fields))
    assert story["cache"]["verdict"] == "off"
    assert story["sentences"][-1] == f"No kept answer would be given: {why}."


async def test_who_may_not_answer_is_not_foreseen_either(tmp_path: Path) -> None:
    async with remembering(tmp_path, FakeEngine(), FakeEngine(name="large")) as gateway:
        await collect(gateway, named(sampling=COLD))
        story = await gateway.explain(ask(model="large", sampling=COLD))
    assert story["cache"]["verdict"] == "miss"


async def test_looking_changes_no_row_though_a_revision_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experience, "REVISE_EVERY", 0)
    async with remembering(tmp_path, embedder=AlikeEmbedder()) as gateway:
        await collect(gateway, named(RESET, sampling=COLD))
        await collect(gateway, named(ALIKE, sampling=COLD, journal=False))
        before = rows(tmp_path)
        for text in (RESET, ALIKE, "Who wrote Faust?"):
            await gateway.explain(named(text, sampling=COLD))
        assert rows(tmp_path) == before
        await collect(gateway, named(RESET, sampling=COLD))
        assert rows(tmp_path) != before


async def test_a_vector_is_made_only_where_there_is_something_to_compare_it_with(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    async with remembering(tmp_path, embedder=embedder) as gateway:
        await gateway.explain(named(RESET))
        assert embedder.texts == []
        await collect(gateway, named(RESET))
        embedder.texts.clear()
        await gateway.explain(named(RESET))
        assert embedder.texts == []
        await gateway.explain(named(ALIKE))
        assert embedder.texts == [ALIKE]


async def test_a_cache_that_can_t_be_read_is_said_to_be_off(tmp_path: Path) -> None:
    def broken() -> None:
        raise StorageError("The disk is full.")

    async with remembering(tmp_path, open_cache=broken) as gateway:
        story = await gateway.explain(named())
    assert story["sentences"][-1] == "No kept answer would be given: The disk is full."


async def test_a_running_server_says_the_same_through_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    async with remembering(tmp_path, embedder=AlikeEmbedder()) as gateway:
        await collect(gateway, named(RESET))
        server = SocketServer(gateway, "http://127.0.0.1:8484", stop=lambda: None)
        assert await server.start()
        client = await connect(Settings())
        assert client is not None
        theirs, ours = [await each.explain(named(ALIKE, id="req-1")) for each in (client, gateway)]
        await server.aclose()
    assert theirs["cache"]["verdict"] == "semantic"
    for story in (theirs, ours):
        del story["cache"]["age_s"]
    assert theirs == ours
