"""The gateway learns from its user: thumbs, picks and repeated questions become outcomes and steer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecloud.app.embedding import Once, OnceEmbedder
from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.lessons import Lessons
from edgecloud.app.proxy.app import create_app
from edgecloud.errors import BadRequest, ModelLoadError, NotFound
from edgecloud.http.drain import Drain
from edgecloud.metrics import Metrics
from edgecloud.router.decision import Estimate
from edgecloud.router.facts import Facts
from edgecloud.router.learned import LearnedQuality
from edgecloud.router.outcomes import Outcomes
from edgecloud.router.priors import PriorQuality
from edgecloud.router.quality import Quality
from edgecloud.router.world import EngineView
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ChatRequest, EmbedResult, Finish, Message
from tests.router.learning_rows import EASY, ELSEWHERE, FINGERPRINT, HARD, fitted, make_quality
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog
from tests.support.live import live_app
from tests.support.requests import client

PLACES = {"easy": EASY, "hard": HARD}


class WordEmbedder:
    """Texts with a known word are at its place, all others elsewhere."""

    name, dimensions, fingerprint = "words", len(EASY), FINGERPRINT

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed(self, inputs: Sequence[Any]) -> EmbedResult:
        self.asked += inputs
        found = [next((at for word, at in PLACES.items() if word in text), ELSEWHERE) for text in inputs]
        return EmbedResult(tuple(tuple(at.tolist()) for at in found), self.name, 1)

    async def aclose(self) -> None: ...


class House:
    """A gateway over a small local engine and a large pool, with history, that learns."""

    def __init__(
        self, folder: Path, *, load: Any = make_quality, router: Any = None, **settings: Any
    ) -> None:
        self.embedder = WordEmbedder()
        self.path = folder / "edgecloud.db"
        entries = (PoolEntry(name="big", url="http://big:8000/v1", model="large-70b"),)
        router = {"cascade": False, **(router or {})}
        self.settings = Settings(model="small-8b", pool=entries, router=router, **settings)
        engines = [FakeEngine([b"local"], name="small-8b"), FakeEngine([b"pool"], name="big", local=False)]
        self.catalog = FakeCatalog(engines, self.embedder, entries)
        self.gateway = self.open(load)

    def open(self, load: Any = make_quality) -> Gateway:
        """A gateway of a process that begins now."""

        async def find() -> OnceEmbedder:
            return OnceEmbedder(await self.catalog.embedder("auto", listed_only=False))

        return Gateway(
            self.settings,
            self.catalog,
            Journal(lambda: History(self.path)),
            make_lessons=lambda: Lessons(find, lambda: Outcomes(self.path), load),
        )

    async def ask(self, text: str, chat_id: str | None = None, **fields: Any) -> Finish:
        request = ChatRequest(messages=(Message("user", text),), chat_id=chat_id, door="chat", **fields)
        events = [event async for event in self.gateway.chat(request)]
        assert isinstance(events[-1], Finish)
        return events[-1]

    async def local_chance(self, text: str) -> float:
        story = await self.gateway.explain(ChatRequest(messages=(Message("user", text),)))
        return next(
            each["p_ok"]["mean"] for each in story["decision"]["candidates"] if each["engine"] == "small-8b"
        )

    def verdicts(self) -> dict[str, float]:
        own = Outcomes(self.path).evidence(FINGERPRINT)
        return dict(zip(own.ids.tolist(), own.scores.tolist(), strict=True))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    yield house
    await house.gateway.aclose()


async def test_thumbs_down_here_send_such_questions_elsewhere(house: House) -> None:
    before, elsewhere = await house.local_chance("an easy one"), await house.local_chance("a hard one")
    for _ in range(4):
        finish = await house.ask("an easy one", mode="local")
        await house.gateway.feedback(finish.receipt.id, "down")

    after = await house.local_chance("an easy one")

    assert after < before - 0.25
    assert await house.local_chance("a hard one") == pytest.approx(elsewhere)


async def test_a_verdict_by_the_id_of_the_message_counts_after_a_restart(house: House) -> None:
    finish = await house.ask("an easy one")
    assert finish.message_id is not None
    await house.gateway.aclose()
    house.gateway = house.open()

    await house.gateway.feedback(finish.message_id, "up")

    assert house.verdicts() == {finish.receipt.id: 1.0}


async def test_an_engine_asked_for_by_name_can_have_a_verdict_too_and_is_asked_without_a_vector(
    house: House,
) -> None:
    finish = await house.ask("an easy one", model="small-8b")
    assert house.embedder.asked == []

    await house.gateway.feedback(finish.receipt.id, "down")

    assert house.verdicts() == {finish.receipt.id: 0.0}
    assert house.embedder.asked == ["an easy one"]


async def test_what_was_picked_wins_and_what_it_was_beside_loses(house: House) -> None:
    here, there = await house.ask("an easy one", mode="local"), await house.ask("an easy one", mode="pool")

    await house.gateway.feedback(there.receipt.id, "picked", over=[here.receipt.id])

    assert house.verdicts() == {there.receipt.id: 1.0, here.receipt.id: 0.0}


async def test_the_same_question_again_in_its_chat_is_a_verdict(house: House) -> None:
    first = await house.ask("a hard one")
    await house.ask("a hard one, please", chat_id=first.chat_id)
    await house.ask("a hard one")  # another chat
    await house.gateway.aclose()

    assert house.verdicts() == {first.receipt.id: 0.0}


async def test_another_question_in_the_chat_is_no_verdict(house: House) -> None:
    first = await house.ask("a hard one")
    await house.ask("an easy one", chat_id=first.chat_id)
    await house.gateway.aclose()

    assert house.verdicts() == {}


async def test_a_verdict_is_taken_back(house: House) -> None:
    finish = await house.ask("an easy one")
    await house.gateway.feedback(finish.receipt.id, "down")
    await house.gateway.feedback(finish.receipt.id, "none")

    assert house.verdicts() == {}


def test_two_who_need_the_verdicts_at_once_open_them_once(tmp_path: Path) -> None:
    opened = list[Outcomes]()
    both = threading.Barrier(2)

    def open_slowly() -> Outcomes:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # only where the other one opens them too
        opened.append(Outcomes(tmp_path / "edgecloud.db"))
        return opened[-1]

    async def withdrawn() -> None:
        lessons = Lessons(lambda: None, open_slowly)  # type: ignore[arg-type, return-value]
        await asyncio.gather(lessons.verdict("one", "none"), lessons.verdict("two", "none"))
        await lessons.aclose()

    asyncio.run(withdrawn())
    assert len(opened) == 1


async def test_what_another_process_deletes_is_not_used_any_more(house: House) -> None:
    before = await house.local_chance("an easy one")
    finish = await house.ask("an easy one", mode="local")
    await house.gateway.feedback(finish.receipt.id, "down")
    assert await house.local_chance("an easy one") < before - 0.05
    assert finish.chat_id is not None

    Outcomes(house.path).delete_chats([finish.chat_id])

    assert await house.local_chance("an easy one") == pytest.approx(before)


async def test_a_version_that_another_process_installs_is_used_at_once(house: House) -> None:
    before = await house.local_chance("an easy one")
    quality = make_quality()
    weights = np.append(
        np.zeros(quality.heads.rows.vectors.shape[1] + quality.heads.rows.features.shape[1]), -2.0
    )

    number = Outcomes(house.path).install({("small-8b", "small-8b"): weights}, FINGERPRINT, {})

    assert await house.local_chance("an easy one") < before - 0.05
    Outcomes(house.path).undo()
    assert number == 1
    assert await house.local_chance("an easy one") == pytest.approx(before)


async def test_a_verdict_on_nothing_or_of_no_kind_is_refused(house: House) -> None:
    finish = await house.ask("an easy one")

    with pytest.raises(NotFound, match="no answer 'req-none'"):
        await house.gateway.feedback("req-none", "up")
    with pytest.raises(BadRequest, match="no verdict 'meh'"):
        await house.gateway.feedback(finish.receipt.id, "meh")


async def test_a_key_has_verdicts_on_its_own_answers_only(house: House) -> None:
    mine = await house.ask("an easy one", tenant="a")

    with pytest.raises(NotFound):
        await house.gateway.feedback(mine.receipt.id, "down", tenant="b")
    await house.gateway.feedback(mine.receipt.id, "down", tenant="a")

    assert house.verdicts() == {mine.receipt.id: 0.0}


async def test_a_damaged_file_of_outcomes_leaves_the_sizes_of_models(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged() -> Any:
        raise ModelLoadError("The known outcomes can't be read: reinstall edgecloud.")

    house = House(tmp_path, load=damaged)

    finish = await house.ask("an easy one")
    await house.ask("an easy one")

    assert finish.receipt.engine in ("small-8b", "big")
    assert house.gateway.lessons is not None
    assert isinstance(await house.gateway.lessons.quality(), PriorQuality)
    assert [record.message for record in caplog.records].count(
        "The known outcomes can't be read: reinstall edgecloud."
    ) == 1
    await house.gateway.aclose()


def test_a_verdict_over_http_is_one_on_an_answer_of_the_same_server(tmp_path: Path) -> None:
    house = House(tmp_path)
    drain = Drain()
    app = create_app(house.gateway, house.settings, drain=drain, metrics=Metrics())
    body = {"model": "auto", "messages": [{"role": "user", "content": "an easy one"}]}
    with live_app(app, drain, 0.0, house.gateway.aclose) as live, client(live.url) as http:
        id = http.post("/v1/chat/completions", json=body).headers["x-request-id"]
        good = http.post("/route/feedback", json={"id": id, "verdict": "down"})
        unknown = http.post("/route/feedback", json={"id": "req-none", "verdict": "down"})
        senseless = http.post("/route/feedback", json={"id": id, "verdict": "meh"})
        without = http.post("/route/feedback", json={"id": id})

    assert (good.status_code, good.json()) == (200, {"ok": True})
    assert [each.status_code for each in (unknown, senseless, without)] == [404, 400, 400]
    assert without.json()["error"]["param"] == "verdict"
    assert house.verdicts() == {id: 0.0}


# ------------------------------------------------------------------------------------------------ embedding


async def test_a_text_is_embedded_once_for_all_who_ask() -> None:
    embedder = WordEmbedder()

    async def find() -> Any:
        return embedder

    find_once = Once(find)
    first, second = await find_once(), await find_once()
    await first.embed(["an easy one"])
    await second.embed(["an easy one"])
    await second.embed(["another"])

    assert embedder.asked == ["an easy one", "another"]


async def test_a_vector_that_was_begun_is_the_one_that_is_asked_for() -> None:
    embedder = WordEmbedder()

    async def find() -> Any:
        return embedder

    find_once = Once(find)
    find_once.begin("before anybody asked for the embedder")
    shared = await find_once()
    find_once.begin("an easy one")
    assert find_once.expects("an easy one")
    assert not find_once.has("an easy one")
    await shared.embed(["an easy one"])

    assert find_once.has("an easy one")
    assert embedder.asked == ["an easy one"]


async def test_a_failed_embedding_is_tried_again() -> None:
    embedder = WordEmbedder()
    working, failing = embedder.embed, [True]

    async def sometimes(inputs: Sequence[Any]) -> EmbedResult:
        if failing.pop() if failing else False:
            raise ModelLoadError("Not now.")
        return await working(inputs)

    embedder.embed = sometimes  # type: ignore[method-assign]
    shared = OnceEmbedder(embedder)

    with pytest.raises(ModelLoadError):
        await shared.embed(["text"])
    assert (await shared.embed(["text"])).model == "words"


async def test_new_verdicts_are_looked_for_once_a_request_and_only_where_there_is_a_choice(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    lessons = house.gateway.lessons
    assert lessons is not None
    num_looks, current = 0, lessons._current

    def counted() -> Quality:
        nonlocal num_looks
        num_looks += 1
        return current()

    await house.ask("the first question finds out what there is")
    monkeypatch.setattr(lessons, "_current", counted)
    await house.ask("an easy one", model="big")
    assert num_looks == 0
    await house.ask("an easy one")
    assert num_looks == 1


class Even(LearnedQuality):
    """The pool is ahead by what the test says."""

    ahead = 0.0

    def predict(self, facts: Facts, engines: Sequence[EngineView]) -> Mapping[str, Estimate]:
        chances = {"small-8b": 0.5, "big": 0.5 + Even.ahead}
        return {view.name: Estimate(chances[view.name], 0.2, 0.8, "the test") for view in engines}


async def test_a_toss_up_stays_where_the_question_before_went_and_a_dry_run_is_no_precedent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(
        tmp_path, load=lambda: Even(fitted(), FINGERPRINT), router={"second_value": 0.0, "hedge": 0.0}
    )

    async def engine(text: str, ahead: float) -> str:
        monkeypatch.setattr(Even, "ahead", ahead)
        return (await house.ask(text, fresh=True)).receipt.engine

    monkeypatch.setattr(Even, "ahead", -0.02)
    await house.gateway.explain(ChatRequest(messages=(Message("user", "an easy one"),)))
    assert await engine("an easy one", 0.02) == "big"
    assert await engine("easy in other words", -0.02) == "big"
    assert await engine("a hard one", -0.02) == "small-8b"
    assert await engine("easy, and clear", -0.2) == "small-8b"
    assert await engine("easy once more", 0.02) == "small-8b"
    await house.gateway.aclose()
