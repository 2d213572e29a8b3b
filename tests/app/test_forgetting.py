"""What goes with a chat that nobody used for as long as settings say, and when it stays."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edgecloud.app.databases import open_answers
from edgecloud.app.forgetting import forget_expired
from edgecloud.app.history import History
from edgecloud.cache.key import key_of
from edgecloud.cache.records import Answer
from edgecloud.errors import StorageError
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, ChoiceDone, Done, Message, Start, TextDelta, Usage

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
