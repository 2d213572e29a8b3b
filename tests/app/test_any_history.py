"""Whatever is asked, fails, hangs, is left, kept, hedged, drafted or continued: nobody sees what may not be
seen, no budget is overdrawn, every attempt is in the books, and everything comes back to 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgecloud.app import routing
from edgecloud.app.books import Books
from edgecloud.app.gateway import Gateway
from edgecloud.app.hedging import HedgeBudget
from edgecloud.app.memory import Memory
from edgecloud.app.run import Closing
from edgecloud.app.upstreams import Upstream
from edgecloud.cache.answers import AnswerCache
from edgecloud.engine import Embedder
from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    EdgeCloudError,
    NotSupported,
    Overloaded,
    Unavailable,
    UpstreamError,
)
from edgecloud.http.keys import tenant_of
from edgecloud.router.budgets import limits_of
from edgecloud.router.ledger import Ledger
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import (
    ChatRequest,
    ChoiceDone,
    Constraint,
    Done,
    EmbedRequest,
    EngineEvent,
    Event,
    Finish,
    Message,
    ReasoningDelta,
    Sampling,
    Start,
    TextDelta,
    TokenLogprob,
    Usage,
)
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog, FakeEmbedder

Fields = dict[str, Any]

HERE, ELSEWHERE = ("small", "near"), ("far", "eu", "eu-2")
SECOND = "http://eu-2:8000/v1"
KEYS = {"narrow": "a-narrow-key-of-24-letters", "wide": "a-wide-key-of-24-letters-"}
TENANTS = {name: tenant_of(key.encode()) for name, key in KEYS.items()}
SECRETS = ("acme", "4539 1488 0343 6467")
TEXTS = (
    "what is a monad",
    "what is a functor then",
    f"sum up what {SECRETS[0]} wants",
    f"my card is {SECRETS[1]}",
)

WORDS = ("\n", "by-{}", "it", "is", "so", "and", "never", "was", "it", "any", "other", "way")

FAULTS: tuple[Callable[[], EdgeCloudError], ...] = (
    lambda: UpstreamError("It fell over."),
    lambda: UpstreamError("It refused our key (401).", upstream_status=401),
    lambda: Overloaded("Busy.", retry_after=0.01),
    lambda: Unavailable("It is being loaded."),
    lambda: ContextLengthExceeded(10, 5),
    lambda: NotSupported("It can't."),
    lambda: BadRequest("It is wrong."),
    lambda: RuntimeError("It broke down."),  # type: ignore[arg-type,return-value]
)


@dataclasses.dataclass(frozen=True)
class Mood:
    """How an engine takes one request: whether it answers, and what happens at which of its tokens."""

    what: str = "answers"
    place: int = 0
    fault: int = 0
    sure: bool = True


class Moody(FakeEngine):
    """Says who it is, each time in another mood. `asked` is told of every request before anything is done."""

    def __init__(self, name: str, moods: list[Mood], asked: Callable[[str, ChatRequest], None]) -> None:
        super().__init__(name=name, local=name in HERE)
        self.info = SimpleNamespace(n_params=135_000_000)
        self.moods = moods
        self.asked = asked

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        mood = self.moods.pop(0) if self.moods else Mood()
        self.asked(self.name, request)
        prompt_tokens = await self.count_tokens(request)
        await self._reach(0, mood, "refuses")
        yield Start(self.name, self.name, prompt_tokens)
        words = WORDS[: request.max_tokens or len(WORDS)]
        for place, word in enumerate(words):
            word = word.format(self.name)
            await self._reach(place, mood, "breaks")
            logprobs = (TokenLogprob(word, -0.01 if mood.sure else -5.0, word.encode(), 0),)
            thinks = mood.what == "thinks" and place < mood.place
            yield ReasoningDelta("Hm. ") if thinks else TextDelta(f"{word} ", 0, logprobs)
        yield ChoiceDone(0, "stop")
        yield Done(Usage(10**9, 10**9) if mood.what == "lies" else Usage(prompt_tokens, len(words)))

    async def _reach(self, place: int, mood: Mood, how: str) -> None:
        await asyncio.sleep(0)
        if place != mood.place:
            return
        if mood.what == how:
            raise FAULTS[mood.fault]()
        if mood.what == "hangs":
            await asyncio.Event().wait()


@dataclasses.dataclass(frozen=True)
class Ask:
    """One request and how long its caller stays: `leaves` after so many events, None to its end."""

    text: str
    wish: dict[str, Any]
    model: str
    key: str | None
    chat: str | None
    door: str
    fresh: bool
    json: bool
    max_tokens: int | None
    deadline_s: float | None
    leaves: int | None


class World:
    """Two engines here and two elsewhere, one of them with two addresses, and what may be seen by whom."""

    def __init__(self, folder: Path, moods: dict[str, list[Mood]], **fields: Any) -> None:
        self.folder, self.moods = folder, moods
        self.pools = (
            PoolEntry(name="near", url="http://near/v1", model="near-1b", local=True),
            PoolEntry(
                name="far", url="http://far/v1", model="far-70b", price_in=5.0, price_out=900.0, region="us",
                lacks=["json"],
            ),
            PoolEntry(
                name="eu", url="http://eu/v1", model="eu-70b", price_out=1000.0, region="eu",
                replicas=[{"url": SECOND}],
            ),
        )  # fmt: skip
        self.settings = Settings(
            model="small",
            pool=self.pools,
            server={
                "keys": [
                    {"name": "narrow", "key": KEYS["narrow"], "engines": ["small", "near"]},
                    {"name": "wide", "key": KEYS["wide"], "tokens_per_day": 4000},
                ]
            },
            **fields,
        )
        self.bound = set[str]()  # chats in which something private was found
        self.wished = set[str]()  # chats that were wished to stay; `ask` and the chat can lift that
        self.turns: dict[str, list[Message]] = {}
        self.forbidden: dict[str, set[str]] = {}  # by the request's id
        self.calls: dict[str, Counter[str]] = {}  # engines by the request's id
        self.receipts: dict[str, Finish] = {}
        self.closings: list[Closing] = []
        self.problems: list[str] = []
        self.ledger = Ledger(folder / "edgecloud.db")
        self.open()

    def open(self) -> None:
        """A new process."""
        engines = [Moody(name, self.moods.get(name, []), self.asked) for name in (*HERE, *ELSEWHERE)]

        async def embedder() -> Embedder:
            return FakeEmbedder()

        catalog = FakeCatalog(engines, FakeEmbedder(), self.pools)
        catalog.engines[SECOND] = engines[-1]
        self.gateway = Gateway(
            self.settings,
            catalog,
            books=Books(lambda: Ledger(self.folder / "edgecloud.db")),
            memory=Memory(self.settings, lambda: AnswerCache(self.folder / "cache.db"), embedder),
        )
        self.gateway.watchers.append(self.closings.append)

    async def close(self) -> None:
        """The end of a process: nothing is under way any more."""
        upstreams = await self.gateway.routing.engines.all()
        assert [each.outstanding[d.name] for each in upstreams.values() for d in each.deployments] == [0] * 5
        assert self.gateway.routing._asked == {}
        assert self.gateway.keys is not None
        assert self.gateway.keys._held == {}
        assert await self.gateway.aclose() == ""
        assert self.money()[1] == 0, "nothing stays set aside"

    def money(self) -> tuple[int, int]:
        return self.ledger.sums(limits_of(self.settings.budget, time.time(), chat_id=None, tenant=None))[0]

    def asked(self, name: str, request: ChatRequest) -> None:
        """An engine gets a request: may it, and is it paid for?"""
        self.calls[request.id]["eu" if name == "eu-2" else name] += 1
        if name in self.forbidden[request.id]:
            self.problems.append(f"{name} was asked {request}")
        told = repr(request)
        if name in ELSEWHERE and any(secret in told for secret in SECRETS):
            self.problems.append(f"{name} was told {told}")
        self.check_money()

    def check_money(self) -> None:
        spent, reserved = self.money()
        limit = round((self.settings.budget.per_day or 0.0) * 1e9)
        if spent + reserved > limit:
            self.problems.append(f"{spent} spent and {reserved} set aside of {limit}")

    def may_not_see(self, ask: Ask) -> set[str]:
        """The engines that may not be asked, from the words of the documentation alone."""
        no = set[str]()
        binding = ask.chat is not None and ask.chat in (
            self.bound | self.wished if ask.door == "http" else self.bound
        )
        if binding or any(secret in ask.text for secret in SECRETS):
            no |= {*ELSEWHERE}
        if ask.wish in ({"private": True}, {"offline": True}, {"mode": "local"}):
            no |= {*ELSEWHERE}
        if ask.wish == {"mode": "pool"}:
            no |= {*HERE}
        if self.settings.privacy.regions:
            no.add("far")
        if ask.json:
            no.add("far")
        if ask.key == "narrow":
            no |= {*ELSEWHERE}
        if ask.model != "auto":
            no |= {*HERE, *ELSEWHERE} - ({"eu", "eu-2"} if ask.model == "eu" else {ask.model})
        return no

    async def play(self, step: list[Ask] | str) -> None:
        """One request, or several at once, or something else that happens."""
        match step:
            case "restart":
                await self.close()
                self.open()
            case "embed":
                await self.gateway.embed(EmbedRequest(inputs=(TEXTS[2],)))
            case "dislike" if self.receipts:
                with contextlib.suppress(EdgeCloudError):
                    await self.gateway.feedback(list(self.receipts)[-1], "down")
            case list():
                await asyncio.gather(*(self.one(ask) for ask in step))
        self.check_money()

    async def one(self, ask: Ask) -> None:
        turns = [*self.turns.get(ask.chat or "", []), Message("user", ask.text)]
        request = ChatRequest(
            messages=tuple(turns),
            model=ask.model,
            door=ask.door,  # type: ignore[arg-type]
            tenant=TENANTS[ask.key] if ask.key else None,
            chat_id=None if ask.chat in TALKS else ask.chat,
            fresh=ask.fresh,
            constraint=Constraint("json") if ask.json else None,
            max_tokens=ask.max_tokens,
            deadline_s=ask.deadline_s,
            sampling=Sampling(temperature=0.0),
            cache=True,
            **ask.wish,
        )
        no = self.forbidden[request.id] = self.may_not_see(ask)
        self.calls[request.id] = Counter()
        events: list[Event] = []
        try:
            async with asyncio.timeout(0.3), aclosing(self.gateway.chat(request)) as stream:
                async for event in stream:
                    events.append(event)
                    if ask.leaves == len(events):
                        break
        except EdgeCloudError:
            assert not any(isinstance(event, Finish) for event in events)
        except TimeoutError:
            pass  # nobody waits for ever
        ends = [event for event in events if isinstance(event, Finish)]
        assert len(ends) <= 1
        assert not ends or events[-1] is ends[0]
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        for name in no:
            if f"by-{name} " in text:
                self.problems.append(f"{request.id} was given what {name} had said")
        if ends:
            self.receipts[request.id] = ends[0]
        if ask.chat is not None:
            self.remember(ask, [*turns, Message("assistant", text)])

    def remember(self, ask: Ask, turns: list[Message]) -> None:
        assert ask.chat is not None
        self.turns[ask.chat] = turns[-6:]
        if any(secret in ask.text for secret in SECRETS):
            self.bound.add(ask.chat)
        if ask.wish == {"private": True}:
            self.wished.add(ask.chat)
        elif ask.door != "http":
            self.wished.discard(ask.chat)

    def check_books(self) -> None:
        """Every request has one line with what it cost, and every attempt is in it, in all tellings alike."""
        assert sorted(closing.receipt.id for closing in self.closings) == sorted(self.forbidden)
        total = 0
        for closing in self.closings:
            line = self.ledger.receipt(closing.receipt.id)
            nano = [round(each["cost"] * 1e9) for each in line["attempts"]]
            total += sum(nano)
            assert round(line["cost"] * 1e9) == round(line["receipt"]["cost"] * 1e9) == sum(nano)
            tried = Counter(each["engine"] for each in line["attempts"])
            assert tried == self.calls[closing.receipt.id], "every call is an attempt in the books"
            outcomes = [(each["engine"], each["outcome"]) for each in line["attempts"]]
            assert outcomes == [(each["engine"], each["outcome"]) for each in line["receipt"]["attempts"]]
            assert all(each["completion_tokens"] <= 20 for each in line["attempts"] if each["cost"])
            if (finish := self.receipts.get(closing.receipt.id)) is not None:
                assert dataclasses.asdict(finish.receipt)["cost"] == line["receipt"]["cost"]
                assert line["outcome"] == "ok"
        assert total == self.money()[0]


WISHES = st.sampled_from(
    [{}, {}, {}, {"private": True}, {"offline": True}]
    + [{"mode": mode} for mode in ("local", "pool", "quality", "quality", "cheap")]
)
ASKS = st.builds(
    Ask,
    text=st.sampled_from(TEXTS[:2] * 4 + TEXTS[2:]),
    wish=WISHES,
    model=st.sampled_from(["auto"] * 6 + ["small", "near", "far", "eu"]),
    key=st.sampled_from([None, None, None, "narrow", "wide"]),
    chat=st.sampled_from([None, "chat-1", "chat-2"]),
    door=st.sampled_from(["ask", "chat", "http"]),
    fresh=st.booleans(),
    json=st.sampled_from([False, False, False, True]),
    max_tokens=st.sampled_from([None, 4, 20]),
    deadline_s=st.sampled_from([None, None, 0.2]),
    leaves=st.sampled_from([None, None, None, 1, 2, 3]),
)
TALKS = ("talk-1", "talk-2")
"""Conversations over HTTP, which are known by nothing but how they begin, and may begin alike."""


def in_a_talk(ask: Ask, talk: str, private: bool) -> Ask:
    wish = {"private": True} if private else {}
    return dataclasses.replace(
        ask, chat=talk, text=TEXTS[0], wish=wish, model="auto", door="http", key=None, json=False
    )


IN_TALKS = st.builds(in_a_talk, ASKS, st.sampled_from(TALKS), st.booleans())
STEPS = st.lists(
    st.lists(ASKS | IN_TALKS, min_size=1, max_size=3) | st.sampled_from(["restart", "embed", "dislike"]),
    min_size=2,
    max_size=6,
) | st.lists(st.lists(IN_TALKS, min_size=1, max_size=1) | st.just("restart"), min_size=4, max_size=8)
MOODS = st.lists(
    st.builds(
        Mood,
        what=st.sampled_from(
            ["answers", "answers", "refuses", "breaks", "breaks", "hangs", "lies", "thinks"]
        ),
        place=st.sampled_from([0, 0, 1, 2, 9]),
        fault=st.integers(0, len(FAULTS) - 1),
        sure=st.booleans(),
    ),
    max_size=4,
)
SETTINGS = st.fixed_dictionaries(
    {
        "router": st.fixed_dictionaries(
            {
                "continue_elsewhere": st.booleans(),
                "cascade": st.booleans(),
                "floor": st.sampled_from([0.05, 0.3, 0.6]),
                "hold_back": st.just(8),
                "hedge": st.sampled_from([0.0, 0.2]),
                "wait_s": st.just(0.05),
                "answer_value": st.sampled_from([1.0, 0.01]),
            }
        ),
        "budget": st.fixed_dictionaries(
            {
                "per_day": st.sampled_from([1.0, 1.0, 0.02, 0.05, 0.0]),
                "answer_tokens": st.sampled_from([4, 20]),
            }
        ),
        "privacy": st.fixed_dictionaries(
            {
                "regions": st.sampled_from([[], ["eu"]]),
                "rules": st.just([{"name": "clients", "pattern": "acme"}]),
            }
        ),
    }
)


async def play(folder: Path, fields: Fields, moods: list[list[Mood]], steps: list[Any]) -> None:
    names = (*HERE, *ELSEWHERE)
    world = World(folder, dict(zip(names, moods, strict=True)), **fields)
    for step in steps:
        await world.play(step)
    await world.close()
    assert world.problems == []
    world.check_books()
    world.ledger.close()
    assert len(asyncio.all_tasks()) == 1, "nobody is left at work"


def histories(max_examples: int) -> Callable[[Any], Any]:
    """Runs a test over so many of them."""

    def over(test: Any) -> Any:
        given_all = given(SETTINGS, st.tuples(*[MOODS] * 5).map(list), STEPS)
        quiet = settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))
        return quiet(given_all(test))

    return over


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a first token, and all that are late may be hedged where some may."""
    monkeypatch.setattr(routing, "HedgeBudget", lambda share: HedgeBudget(5 * share))
    monkeypatch.setattr(Upstream, "patience_s", lambda self, tokens: 0.03 if self.name in ELSEWHERE else 9.0)


# cases: R21 R27 R38 R40
@histories(8)
async def test_any_short_history_keeps_privacy_money_and_books(
    tmp_path_factory: pytest.TempPathFactory,
    fields: Fields,
    moods: list[list[Mood]],
    steps: list[Any],
) -> None:
    await play(tmp_path_factory.mktemp("world"), fields, moods, steps)


@pytest.mark.slow
@histories(150)
async def test_any_history_keeps_privacy_money_and_books(
    tmp_path_factory: pytest.TempPathFactory,
    fields: Fields,
    moods: list[list[Mood]],
    steps: list[Any],
) -> None:
    await play(tmp_path_factory.mktemp("world"), fields, moods, steps)
