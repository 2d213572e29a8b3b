"""What goes with a chat that nobody used for as long as settings say, and when it stays."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecloud.app.books import Books
from edgecloud.app.databases import open_answers
from edgecloud.app.embedding import OnceEmbedder
from edgecloud.app.forgetting import forget_chats, forget_expired
from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.lessons import Lessons
from edgecloud.app.memory import Memory
from edgecloud.app.prefixes import open_prefixes
from edgecloud.cache.key import key_of
from edgecloud.cache.prefix_key import StateKind
from edgecloud.cache.records import Answer
from edgecloud.errors import StorageError
from edgecloud.folders import data_dir
from edgecloud.router.ledger import Ledger
from edgecloud.router.outcomes import Outcomes
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ChatRequest, ChoiceDone, Done, Finish, Message, Start, TextDelta, Usage
from tests.app.test_lessons import WordEmbedder
from tests.router.learning_rows import make_quality
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog

REQUEST = ChatRequest(messages=(Message("user", "Why is the sky blue?"),), door="ask")
EVENTS = (Start("local", "model", 1), TextDelta("It is."), ChoiceDone(0, "stop"), Done(Usage(1, 1)))
DAY_S = 86400.0


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    (tmp_path / "data").mkdir()
    history = History(tmp_path / "data" / "edgecloud.db", clock=clock)
    yield history
    history.close()


def asked(history: History) -> str:
    turn = history.begin(REQUEST)
    history.finish(turn, None, {0: "stop"}, {}, "complete")
    return turn.chat_id


def test_an_answer_kept_from_an_expired_chat_goes_with_it(history: History, clock: Clock) -> None:
    old = asked(history)
    clock.now += 8 * DAY_S
    recent = asked(history)
    with closing(open_answers(Settings())) as kept:
        kept.store(key_of(REQUEST), None, Answer(EVENTS, "local:model", chat_id=old))
        kept.store(key_of(REQUEST), None, Answer(EVENTS, "other:model", chat_id=recent))

        forget_expired(history, 7)

        assert [entry.answerer for entry in kept.entries()] == ["other:model"]
    assert [chat.id for chat in history.list()] == [recent]


def test_an_expired_chat_stays_while_what_came_of_it_can_t_be_deleted(
    history: History, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(chat_ids: Collection[str]) -> bool:
        raise StorageError("cache.db is busy.")

    asked(history)
    clock.now += 8 * DAY_S
    with monkeypatch.context() as patched:
        patched.setattr("edgecloud.app.forgetting.forget_chats", busy)
        forget_expired(history, 7)
    assert len(history.list()) == 1, "else nobody would know what is still to be deleted"

    forget_expired(history, 7)
    assert history.list() == ()


SECRET = "zanzibar-quokka"


@asynccontextmanager
async def learning_house() -> AsyncIterator[Gateway]:
    """A gateway that keeps all there is to keep, over a small engine here and a large one elsewhere."""
    path = data_dir() / "edgecloud.db"
    entry = PoolEntry(name="big", url="http://big:8000/v1", model="large-70b")
    settings = Settings(model="small-8b", pool=(entry,), router={"cascade": False})
    engines = [FakeEngine([f"The {SECRET}.".encode()], name=name) for name in ("small-8b", "big")]
    catalog = FakeCatalog(engines, WordEmbedder(), (entry,))

    async def find() -> OnceEmbedder:
        return OnceEmbedder(await catalog.embedder("auto", listed_only=False))

    gateway = Gateway(
        settings,
        catalog,
        Journal(lambda: History(path)),
        Books(lambda: Ledger(path)),
        Memory(settings, lambda: open_answers(settings), find),
        lambda: Lessons(find, lambda: Outcomes(path), make_quality),
    )
    try:
        yield gateway
    finally:
        await gateway.aclose()


async def ask(gateway: Gateway, text: str, **fields: Any) -> Finish:
    request = ChatRequest(messages=(Message("user", text),), **{"door": "chat", **fields})
    *_, last = [event async for event in gateway.chat(request)]
    assert isinstance(last, Finish)
    return last


def save_prefix(chat_id: str) -> None:
    kind = StateKind("small-8b", "file", "build", "f16")
    with closing(open_prefixes(Settings())) as prefixes:
        assert prefixes.save(kind, range(640), SECRET.encode() * 99, chat_id, token_s=1.0)


def files_with(*secrets: bytes) -> list[str]:
    """The files of the home in whose bytes one of these is."""
    files = [file for file in data_dir().rglob("*") if file.is_file()]
    return sorted(file.name for file in files if any(secret in file.read_bytes() for secret in secrets))


@pytest.mark.parametrize("door", ["chat", "ask", "http"])
async def test_no_byte_of_a_deleted_chat_is_left_while_a_server_has_the_files_open(
    history: History, door: str
) -> None:
    embedder = WordEmbedder()
    vector = np.array((await embedder.embed(["easy"])).vectors[0], np.float32).tobytes()
    async with learning_house() as gateway:
        finish = await ask(gateway, f"How does the {SECRET} do an easy thing?", door=door, cache=True)
        await ask(gateway, f"How does the {SECRET} do an easy thing?", door=door, cache=True)
        await gateway.feedback(finish.receipt.id, "picked")
        assert gateway.memory is not None
        await asyncio.gather(*gateway.memory._asides)
        chats = [chat.id for chat in history.list()]
        save_prefix(chats[0])
        history.search(SECRET)
        everywhere = {name.partition("-wal")[0] for name in files_with(SECRET.encode(), vector)}
        assert everywhere == {"cache.db", "edgecloud.db", "prefixes.db"}

        assert forget_chats(chats)
        assert history.remove(chats).purged

        assert files_with(SECRET.encode(), vector) == []
        story = await gateway.why(finish.receipt.id)
        assert story["decision"] is None


@pytest.mark.slow
async def test_what_another_process_still_reads_is_wiped_by_the_next_start(history: History) -> None:
    async with learning_house() as gateway:
        await ask(gateway, f"How does the {SECRET} do an easy thing?")
        assert gateway.memory is not None
        await asyncio.gather(*gateway.memory._asides)
        reader = sqlite3.connect(data_dir() / "cache.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM answers").fetchone()
        chats = [chat.id for chat in history.list()]

        assert not forget_chats(chats), "whoever deletes it is told"
        history.remove(chats)
        assert files_with(SECRET.encode()) != []

        reader.close()
        open_answers(Settings()).close()
        assert files_with(SECRET.encode()) == []


def test_an_answer_on_its_way_to_a_deleted_chat_is_not_kept(history: History) -> None:
    with closing(open_answers(Settings())) as kept:
        forget_chats(["chat-1"])
        answer = Answer(EVENTS, "local:model", chat_id="chat-1")
        assert kept.store(key_of(REQUEST), None, answer) == (None, "its chat was deleted")
        assert kept.entries() == []


def test_however_many_chats_go_old_pages_are_wiped_once(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time whoever reads is waited for."""
    open_answers(Settings()).close()
    wiped: list[dict[str, float]] = []
    monkeypatch.setattr("edgecloud.cache.answers.truncate_wal", lambda _, **how: wiped.append(how) or True)

    assert forget_chats(["chat-1", "chat-2", "chat-3"])
    assert wiped == [{"patience_s": 0.0}, {}], "at the opening, and at the end"
