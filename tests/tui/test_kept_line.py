"""The line below the prompt says what the cache would do before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecloud.app.memory import Memory
from edgecloud.app.tui.app import EdgeCloudApp
from edgecloud.app.tui.state.preview import of_story
from edgecloud.cache.answers import AnswerCache
from edgecloud.engine import Embedder
from edgecloud.settings import CacheSettings, Settings
from edgecloud.types import CacheInfo
from edgecloud.wire.native import dump_record
from tests.app.test_memory import AlikeEmbedder
from tests.support.fake_engine import FakeEngine

from .chatting import Driven, driven, make_app, until

RESET = "How do I reset my password?"
ALIKE = "How can I reset my password, please?"
HOUR_S = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def find() -> Embedder:
    return AlikeEmbedder()


def remembering(folder: Path, clock: Clock, settings: Settings | None = None) -> EdgeCloudApp:
    """The chat over a gateway that keeps answers."""
    settings = settings or Settings()
    app = make_app(folder, FakeEngine(), settings=settings)
    app.gateway.memory = Memory(  # type: ignore[union-attr]
        settings, lambda: AnswerCache(folder / "cache.db", clock=clock, draw=lambda: 1.0), find
    )
    return app


async def foreseen(user: Driven, text: str) -> str:
    """What stands below the prompt once this is typed and the gateway was asked."""
    asked: list[str] = []
    foresight, ask = user.chat.foresight, user.chat.foresight.ask

    async def noted(*what: object) -> None:
        await ask(*what)  # type: ignore[arg-type]
        asked.append(text)

    foresight.ask = noted  # type: ignore[method-assign]
    await user.type(text)
    await until(lambda: asked)
    await user.pilot.pause()
    return user.screen_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RESET, "kept answer from 2 hours ago · fake on this machine · free  "),
        (ALIKE, "similar question kept · 96% · fake on this machine · free  "),
        ("Who wrote Faust?", "fake on this machine · free · about 32 tokens"),
    ],
)
async def test_the_line_says_which_kept_answer_would_be_given(tmp_path: Path, text: str, words: str) -> None:
    clock = Clock()
    async with driven(remembering(tmp_path, clock)) as user:
        await user.ask(RESET)
        clock.now += 2 * HOUR_S
        await user.do("/new")
        assert words in await foreseen(user, text)


@pytest.mark.parametrize("is_on", [True, False])
async def test_without_pools_the_gateway_is_asked_only_where_answers_are_kept(
    tmp_path: Path, is_on: bool
) -> None:
    app = remembering(tmp_path, Clock(), Settings(cache=CacheSettings(enabled=is_on)))
    async with driven(app) as user:
        await user.type(RESET)
        assert user.chat._asking is not None
        assert user.chat._asking._active.is_set() == is_on


def test_a_kept_answer_of_a_pool_costs_nothing_and_is_not_waited_for() -> None:
    story = {"decision": None, "model": "big", "local": False, "sentences": []}
    hit = dump_record(CacheInfo("exact", 1.0, 2 * HOUR_S, "ans-1", 1.0))
    off = dump_record(CacheInfo("off"))

    told = of_story({**story, "cache": hit}, 100)
    assert told.line() == "kept answer from 2 hours ago · big on a pool · free · about 100 tokens"
    assert told.line(40) == "kept answer from 2 hours ago"
    assert of_story({**story, "cache": off}, 100).line() == "big on a pool · about 100 tokens"
