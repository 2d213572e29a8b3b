"""Kept answers through the gateway: which doors get them, what is said of them, and what trouble does."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from edgecloud.app.books import Books
from edgecloud.app.explaining import request_story
from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.lessons import Lessons
from edgecloud.app.memory import Memory
from edgecloud.cache.answers import AnswerCache
from edgecloud.cache.same import shipped
from edgecloud.engine import Embedder
from edgecloud.errors import BadRequest, ModelNotFound, NotFound, StorageError, UpstreamError
from edgecloud.router.ledger import Ledger, RequestEntry
from edgecloud.router.priors import PriorQuality
from edgecloud.settings import CacheSettings, HistorySettings, Settings
from edgecloud.types import (
    CacheInfo,
    ChatRequest,
    EmbedResult,
    Event,
    Finish,
    Message,
    Notice,
    Sampling,
    Start,
    TextDelta,
)
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog, FakeEmbedder

SKY = "Why is the sky blue?"
COLD = Sampling(temperature=0)


def ask(text: str = SKY, **fields: Any) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text),), **{"door": "ask", **fields})


class CountingEmbedder(FakeEmbedder):
    """Says how many texts it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> Any:
        self.texts += [str(each) for each in inputs]
        return await super().embed(inputs)


@asynccontextmanager
async def remembering(
    folder: Path,
    *engines: FakeEngine,
    settings: Settings | None = None,
    embedder: Embedder | None = None,
    open_cache: Any = None,
) -> AsyncIterator[Gateway]:
    """A gateway with a memory in a folder."""
    settings = settings or Settings()
    catalog = FakeCatalog(engines or [FakeEngine()], embedder or FakeEmbedder())

    async def find() -> Embedder:
        return await catalog.embedder("auto", listed_only=False)

    def open_there() -> AnswerCache:
        return AnswerCache(folder / "cache.db", draw=lambda: 1.0)

    gateway = Gateway(
        settings,
        catalog,
        Journal(lambda: History(folder / "edgecloud.db")),
        Books(lambda: Ledger(folder / "edgecloud.db")),
        memory=Memory(settings, open_cache or open_there, find),
        make_lessons=lambda: Lessons(find, None, PriorQuality),  # type: ignore[arg-type]
    )
    try:
        yield gateway
    finally:
        await gateway.aclose()


async def collect(gateway: Gateway, request: ChatRequest) -> list[Event]:
    events = [event async for event in gateway.chat(request)]
    # What is kept is kept aside.
    assert gateway.memory is not None
    await asyncio.gather(*gateway.memory._asides)
    return events


def finish(events: list[Event]) -> Finish:
    assert isinstance(events[-1], Finish)
    return events[-1]


def answer(events: list[Event]) -> list[Event]:
    """The part of a stream that a client sees, without ids and times."""
    return [event for event in events if not isinstance(event, Start | Notice | Finish)]


# cases: R59
async def test_the_second_time_nobody_is_asked(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with remembering(tmp_path, engine) as gateway:
        first = await collect(gateway, ask(sampling=COLD))
        second = await collect(gateway, ask(sampling=COLD))

    assert len(engine.requests) == 1
    assert answer(second) == answer(first)
    assert finish(second).usage == finish(first).usage
    assert finish(first).receipt.cache == CacheInfo("miss")
    receipt = finish(second).receipt
    assert (receipt.cache.verdict, receipt.cache.similarity) == ("exact", 1.0)
    assert receipt.cache.entry_id
    assert (receipt.engine, receipt.attempts, receipt.cost) == ("fake", (), 0.0)
    assert receipt.reason == "answered before"
    (notice,) = (event for event in second if isinstance(event, Notice))
    assert notice.kind == "cached"
    assert "--fresh" in notice.text


async def test_why_tells_of_a_kept_answer_whose_it_is(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        first = finish(await collect(gateway, ask()))
        second = finish(await collect(gateway, ask()))
        computed = await gateway.why(first.receipt.id)
        kept = await gateway.why(second.receipt.id)

    assert computed["sentences"][0] == "Only one engine was meant, so nothing was weighed."
    entry_id = second.receipt.cache.entry_id
    assert kept["sentences"] == [
        "This was asked before, so nobody was asked: fake answered it 0 s earlier.",
        f"Cache: semantic, entry {entry_id}; `edgecloud cache show {entry_id}` shows it, "
        "`--fresh` asks again.",
    ]


async def test_why_tells_how_similar_the_question_of_a_kept_answer_was(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        receipt = finish(await collect(gateway, ask())).receipt
    hit = dataclasses.replace(receipt, id="req-hit", cache=CacheInfo("semantic", 0.97, 7300.0, "ans-1"))
    ledger = Ledger(tmp_path / "edgecloud.db")
    ledger.settle(RequestEntry(hit, 0.0, "ask", None, None, "ok", 0), (), ())

    told, _ = request_story(ledger, "req-hit")["sentences"]
    assert told == (
        "A similar question was asked before (similarity 0.97), so nobody was asked: "
        "fake answered it 2 hours earlier."
    )
    ledger.close()


async def test_a_kept_answer_is_journalled_with_its_receipt(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        await collect(gateway, ask())
        second = finish(await collect(gateway, ask()))

    history = History(tmp_path / "edgecloud.db")
    assert second.chat_id is not None
    assert [m.content for m in history.messages(second.chat_id)] == [SKY, "Hello, world!"]
    decision = history.decision(second.receipt.id)
    assert decision is not None
    assert decision["cache"]["verdict"] == "semantic"
    history.close()


@pytest.mark.parametrize(
    ("settings", "fields", "verdict"),
    [
        (Settings(), {}, "exact"),
        (Settings(), {"door": "chat"}, "exact"),
        (Settings(), {"door": "http"}, "off"),
        (Settings(), {"door": "http", "cache": True}, "exact"),
        (Settings(), {"cache": False}, "off"),
        (Settings(), {"n": 2}, "off"),
        (Settings(cache=CacheSettings(http=True)), {"door": "http"}, "exact"),
        (Settings(cache=CacheSettings(enabled=False)), {}, "off"),
    ],
)
async def test_who_gets_kept_answers(
    tmp_path: Path, settings: Settings, fields: dict[str, Any], verdict: str
) -> None:
    async with remembering(tmp_path, settings=settings) as gateway:
        await collect(gateway, ask(sampling=COLD, **fields))
        second = await collect(gateway, ask(sampling=COLD, **fields))
    assert finish(second).receipt.cache.verdict == verdict


async def test_fresh_asks_again_and_keeps_what_comes(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with remembering(tmp_path, engine) as gateway:
        await collect(gateway, ask())
        engine.script = (b"Another", b" answer")
        again = await collect(gateway, ask(fresh=True))
        third = await collect(gateway, ask())

    assert finish(again).receipt.cache == CacheInfo("miss")
    assert len(engine.requests) == 2
    assert answer(third) == answer(again)


async def stop_at_first_word(gateway: Gateway, request: ChatRequest) -> None:
    async with aclosing(gateway.chat(request)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                return


@pytest.mark.parametrize("how", ["cut", "stopped", "unkept"])
async def test_what_was_refused_is_not_given_again_where_the_new_answer_can_t_be_kept(
    tmp_path: Path, how: str
) -> None:
    engine = FakeEngine()
    async with remembering(tmp_path, engine) as gateway:
        await collect(gateway, ask())
        engine.script = (b"Another", b" answer")
        if how == "cut":
            await collect(gateway, ask(fresh=True, max_tokens=1))
        elif how == "stopped":
            await stop_at_first_word(gateway, ask(fresh=True))
        else:
            await collect(gateway, ask(fresh=True, journal=False))
        last = await collect(gateway, ask())
    assert finish(last).receipt.cache == CacheInfo("miss")
    assert len(engine.requests) == 3


async def test_what_was_refused_stays_where_nobody_begins_to_answer_anew(tmp_path: Path) -> None:
    engine = FakeEngine()
    async with remembering(tmp_path, engine) as gateway:
        await collect(gateway, ask())
        engine.refuse = UpstreamError("It is down.")
        with pytest.raises(UpstreamError):
            await collect(gateway, ask(fresh=True))
        last = await collect(gateway, ask())
    assert finish(last).receipt.cache.verdict == "semantic"


async def test_another_model_does_not_get_its_answer(tmp_path: Path) -> None:
    small, large = FakeEngine(name="small"), FakeEngine(name="large")
    async with remembering(tmp_path, small, large) as gateway:
        await collect(gateway, ask(sampling=COLD))
        await collect(gateway, ask(sampling=COLD, model="large"))
        last = await collect(gateway, ask(sampling=COLD, model="large"))

    assert (len(small.requests), len(large.requests)) == (1, 1)
    assert finish(last).receipt.engine == "large"


# cases: R57
async def test_cut_interrupted_and_unkept_answers_are_computed_again(tmp_path: Path) -> None:
    engine = FakeEngine(decode_s=0.01)
    async with remembering(tmp_path, engine) as gateway:
        await stop_at_first_word(gateway, ask())
        await collect(gateway, ask(journal=False))
        engine.reason = "length"
        await collect(gateway, ask())
        last = await collect(gateway, ask())
    assert finish(last).receipt.cache == CacheInfo("miss")
    assert len(engine.requests) == 4


async def test_no_answer_is_kept_for_longer_than_chats_are(tmp_path: Path) -> None:
    settings = Settings(history=HistorySettings(retention_days=2))
    async with remembering(tmp_path, settings=settings) as gateway:
        await collect(gateway, ask())
    cache = AnswerCache(tmp_path / "cache.db")
    (entry,) = cache.entries()
    cache.close()
    assert entry.expires - entry.created == pytest.approx(2 * 86_400)


async def test_a_vector_is_made_only_where_it_is_of_use(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    async with remembering(tmp_path, embedder=embedder) as gateway:
        await collect(gateway, ask(sampling=Sampling(temperature=1.5)))
        await collect(gateway, ask("continue"))
        assert embedder.texts == []
        await collect(gateway, ask())
        await collect(gateway, ask())
        assert embedder.texts == [SKY]


async def test_without_an_embedder_the_same_words_are_still_known(tmp_path: Path) -> None:
    class NoEmbedder(FakeEmbedder):
        async def embed(self, inputs: object) -> Any:
            raise ModelNotFound("minilm")

    engine = FakeEngine()
    async with remembering(tmp_path, engine, embedder=NoEmbedder()) as gateway:
        await collect(gateway, ask())
        assert finish(await collect(gateway, ask())).receipt.cache.verdict == "semantic"
        other = await collect(gateway, ask("Please say why the sky is blue."))
    assert finish(other).receipt.cache == CacheInfo("miss")


async def test_a_cache_that_cannot_be_used_is_told_once_and_costs_no_answer(tmp_path: Path) -> None:
    tries = []

    def broken() -> AnswerCache:
        tries.append(1)
        raise StorageError("cache.db cannot be written.")

    async with remembering(tmp_path, open_cache=broken) as gateway:
        first = await collect(gateway, ask())
        second = await collect(gateway, ask())

    notices = [event for event in first + second if isinstance(event, Notice)]
    assert [notice.text for notice in notices] == ["Kept answers are not used: cache.db cannot be written."]
    assert answer(first) == answer(second)
    assert finish(second).usage == finish(first).usage
    assert len(tries) == 1


async def test_a_file_that_is_damaged_under_way_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecloud.app.memory.REST_S", 0.0)
    opened = []

    class Damaged(AnswerCache):
        def recall(self, *args: Any, **options: Any) -> Any:
            raise StorageError("cache.db is damaged.")

    def open_cache() -> AnswerCache:
        opened.append(AnswerCache if opened else Damaged)
        return opened[-1](tmp_path / "cache.db")

    async with remembering(tmp_path, open_cache=open_cache) as gateway:
        verdicts = [
            finish(await collect(gateway, ask(sampling=COLD))).receipt.cache.verdict for _ in range(2)
        ]

    assert opened == [Damaged, AnswerCache]
    # The first answer was kept in the file that was opened for it.
    assert verdicts == ["miss", "exact"]


async def test_a_bug_in_the_cache_costs_no_answer(tmp_path: Path) -> None:
    class Buggy(AnswerCache):
        def recall(self, *args: Any, **options: Any) -> Any:
            raise ValueError("a bug")

    async with remembering(tmp_path, open_cache=lambda: Buggy(tmp_path / "cache.db")) as gateway:
        events = await collect(gateway, ask())
    assert finish(events).receipt.cache == CacheInfo("miss")


async def test_a_thumb_down_blocks_and_a_deleted_chat_takes_its_answer_along(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        assert gateway.memory is not None
        await collect(gateway, ask())
        hit = finish(await collect(gateway, ask())).receipt.cache
        assert hit.entry_id is not None
        assert await gateway.memory.blame(hit.entry_id)
        again = finish(await collect(gateway, ask()))
        assert again.receipt.cache == CacheInfo("miss")
        assert finish(await collect(gateway, ask())).receipt.cache.verdict == "semantic"

        assert again.chat_id is not None
        with closing(AnswerCache(tmp_path / "cache.db")) as cache:
            assert cache.delete_chats([again.chat_id]).num_answers == 1
        assert finish(await collect(gateway, ask())).receipt.cache == CacheInfo("miss")


async def test_of_the_same_request_at_once_one_is_computed(tmp_path: Path) -> None:
    class SlowEmbedder(FakeEmbedder):
        async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> Any:
            await asyncio.sleep(0.2)  # the answer is kept so much later than it is given
            return await super().embed(inputs)

    engine = FakeEngine(decode_s=0.01)
    async with remembering(tmp_path, engine, embedder=SlowEmbedder()) as gateway:
        seen = await asyncio.gather(*(collect(gateway, ask(sampling=COLD)) for _ in range(5)))

    assert len(engine.requests) == 1
    assert [finish(events).receipt.cache.verdict for events in seen] == ["miss"] + 4 * ["exact"]
    assert all(answer(events) == answer(seen[0]) for events in seen)


async def test_who_waited_for_one_that_was_stopped_is_answered_and_nobody_waits_twice(tmp_path: Path) -> None:
    engine = FakeEngine(decode_s=0.01)
    async with remembering(tmp_path, engine) as gateway:
        first = asyncio.create_task(stop_at_first_word(gateway, ask(sampling=COLD)))
        await asyncio.sleep(0)
        seen = await asyncio.gather(*(collect(gateway, ask(sampling=COLD)) for _ in range(3)))
        await first

    assert {finish(events).usage.completion_tokens for events in seen} == {4}
    assert len(engine.requests) == 4, "the first was stopped, the others waited for it and no longer"


async def test_requests_that_only_seem_the_same_do_not_wait_for_each_other(tmp_path: Path) -> None:
    engine = FakeEngine(decode_s=0.01)
    async with remembering(tmp_path, engine) as gateway:
        requests = [ask(), ask(), ask(sampling=COLD, fresh=True), ask(sampling=COLD, journal=False)]
        await asyncio.gather(*(collect(gateway, request) for request in requests))
    assert len(engine.requests) == 4


# cases: R58
async def test_a_thumb_down_on_an_answer_takes_what_was_kept_of_it(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        first = finish(await collect(gateway, ask(sampling=COLD)))
        second = finish(await collect(gateway, ask(sampling=COLD)))
        assert second.receipt.cache.verdict == "exact"
        await gateway.feedback(first.receipt.id, "down")
        third = finish(await collect(gateway, ask(sampling=COLD)))
    assert third.receipt.cache == CacheInfo("miss")


# cases: R62
@pytest.mark.parametrize("by", ["request", "message"])
async def test_a_thumb_down_on_a_kept_answer_blocks_it(tmp_path: Path, by: str) -> None:
    async with remembering(tmp_path) as gateway:
        await collect(gateway, ask(sampling=COLD))
        hit = finish(await collect(gateway, ask(sampling=COLD)))
        name = hit.receipt.id if by == "request" else hit.message_id
        assert name is not None
        await gateway.feedback(name, "down")
        third = finish(await collect(gateway, ask(sampling=COLD)))
    assert third.receipt.cache == CacheInfo("miss")
    cache = AnswerCache(tmp_path / "cache.db")
    assert cache.stats().blamed == 1
    cache.close()


class AlikeEmbedder(FakeEmbedder):
    """Finds all texts nearly the same."""

    fingerprint = shipped().fingerprint

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> Any:
        vectors = ((0.8, 0.6) if "please" in str(text) else (0.6, 0.8) for text in inputs)
        return EmbedResult(tuple(vector + 382 * (0.0,) for vector in vectors), self.name, 1)


@pytest.mark.parametrize("verdict", ["down", "regenerated"])
async def test_a_similar_question_s_answer_that_is_disliked_is_the_cache_s_fault_and_no_engine_s(
    tmp_path: Path, verdict: str
) -> None:
    async with remembering(tmp_path, embedder=AlikeEmbedder()) as gateway:
        await collect(gateway, ask("How do I reset my password?"))
        hit = finish(await collect(gateway, ask("How can I reset my password, please?")))
        assert hit.receipt.cache.verdict == "semantic"
        assert 0.9 <= (hit.receipt.cache.probability or 0.0) < 1.0
        await gateway.feedback(hit.receipt.id, verdict)
        again = finish(await collect(gateway, ask("How can I reset my password, please?")))
    assert again.receipt.cache == CacheInfo("miss")


async def test_no_other_verdict_takes_an_answer_from_the_cache(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        first = finish(await collect(gateway, ask(sampling=COLD)))
        for verdict in ("up", "regenerated", "edited"):
            with pytest.raises(NotFound):
                await gateway.feedback(first.receipt.id, verdict)
        second = finish(await collect(gateway, ask(sampling=COLD)))
    assert second.receipt.cache.verdict == "exact"


async def test_a_verdict_that_there_is_not_is_told_before_the_answer_is_looked_for(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        with pytest.raises(BadRequest, match="'sideways'") as raised:
            await gateway.feedback("req-nobody", "sideways")
    assert raised.value.param == "verdict"


async def test_another_key_s_verdict_takes_no_answer_from_the_cache(tmp_path: Path) -> None:
    async with remembering(tmp_path) as gateway:
        mine = ask(sampling=COLD, door="http", cache=True, tenant="me")
        first = finish(await collect(gateway, mine))
        with pytest.raises(NotFound):
            await gateway.feedback(first.receipt.id, "down", tenant="somebody else")
        second = finish(await collect(gateway, dataclasses.replace(mine, id="req-2")))
    assert second.receipt.cache.verdict == "exact"


@pytest.mark.parametrize(("embedder", "num_texts"), [("minilm", 0), ("another", 1)])
async def test_what_the_starter_embedder_can_t_read_it_is_not_given(
    tmp_path: Path, embedder: str, num_texts: int
) -> None:
    counting = CountingEmbedder()
    settings = Settings(embedder=embedder, cache=CacheSettings(languages=("en", "de")))
    async with remembering(tmp_path, settings=settings, embedder=counting) as gateway:
        await collect(gateway, ask("Warum ist der Himmel blau, wenn die Sonne scheint?"))
    assert len(counting.texts) == num_texts


@pytest.mark.parametrize(("known_by", "num_visits"), [("_has_vector", 4), ("_expects_vector", 6)])
async def test_a_question_whose_vector_is_there_or_coming_is_looked_up_without_reading_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_by: str, num_visits: int
) -> None:
    read: list[str] = []
    monkeypatch.setattr(AnswerCache, "_is_near", lambda *_: bool(read.append("all prompts")))
    async with remembering(tmp_path) as gateway:
        memory = gateway.memory
        assert memory is not None
        monkeypatch.setattr(memory, known_by, lambda text: True)
        visits, begin = 0, memory._begin

        def counted(work: Any) -> Any:
            nonlocal visits
            visits += 1
            return begin(work)

        monkeypatch.setattr(memory, "_begin", counted)
        await collect(gateway, ask("What is a monad?"))
        again = await collect(gateway, ask("What is a monoid?"))

    # Each is looked up, before its vector comes and then with it or all at once, and kept.
    assert (visits, read) == (num_visits, [])
    assert finish(again).receipt.cache == CacheInfo("miss")
