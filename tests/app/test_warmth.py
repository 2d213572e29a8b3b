"""Chats that a local model saved on disk count as warm, also for a process that has just begun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from edgecloud.app.prefixes import open_prefixes, saved_tokens
from edgecloud.app.routing import Routing
from edgecloud.cache.prefix_key import StateKind
from edgecloud.errors import StorageError
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ChatRequest, Message
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog

LONG = ChatRequest(messages=(Message("user", "word " * 4000),), chat_id="chat-1")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))


class Remembering(FakeCatalog):
    """A catalog of one local model and one pool, with chats on disk."""

    def __init__(self, saved: Mapping[tuple[str, str], int] | StorageError) -> None:
        engines = [FakeEngine([b"local"], name="small"), FakeEngine([b"pool"], name="big", local=False)]
        super().__init__(engines, pools=(PoolEntry(name="big", url="http://203.0.113.7/v1", model="m"),))
        self.saved = saved
        self.num_looks = 0

    def saved_tokens(self) -> Mapping[tuple[str, str], int]:
        self.num_looks += 1
        if isinstance(self.saved, StorageError):
            raise self.saved
        return self.saved


async def warm(catalog: Remembering, request: ChatRequest = LONG) -> dict[str, int]:
    routing = Routing(Settings(model="small", pool=catalog.pools), catalog, None)
    plan = await routing.plan(request, dry=True)
    await routing.plan(request, dry=True)
    await routing.aclose()
    return {view.name: view.warm_tokens for view in plan.world.engines}


async def test_a_chat_on_disk_is_warm_for_the_model_that_saved_it() -> None:
    catalog = Remembering({("chat-1", "small"): 3000, ("chat-2", "small"): 9, ("chat-1", "other"): 4000})

    assert await warm(catalog) == {"small": 3000, "big": 0}
    assert catalog.num_looks == 1, "the disk is looked at once"


async def test_a_damaged_file_makes_chats_cold_and_nothing_worse() -> None:
    assert await warm(Remembering(StorageError("It is damaged."))) == {"small": 0, "big": 0}


def test_the_longest_state_of_each_chat_and_model_counts() -> None:
    settings = Settings()
    assert saved_tokens(settings) == {}
    store = open_prefixes(settings)
    for model, number, chat in (("a", 1500, "one"), ("a", 2500, "two"), ("b", 2000, "one")):
        kind = StateKind(model, model * 32, "build 1", "f16")
        tokens = list(range(number, 2 * number))
        assert store.save(kind, tokens, bytearray(1000), chat) is not None
    store.close()

    assert saved_tokens(settings) == {("one", "a"): 1500, ("two", "a"): 2500, ("one", "b"): 2000}
