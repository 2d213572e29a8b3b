"""Receipt, ledger, history, headers, `why` and `stats` tell one story of a request, whatever became of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from edgecloud.app import routing
from edgecloud.app.books import Books
from edgecloud.app.cli.ending import exit_code
from edgecloud.app.cli.main import edgecloud
from edgecloud.app.cli.shell import State
from edgecloud.app.gateway import Gateway
from edgecloud.app.hedging import HedgeBudget
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.memory import Memory
from edgecloud.app.proxy.app import create_app
from edgecloud.app.run import Closing
from edgecloud.cache.answers import AnswerCache
from edgecloud.engine import Embedder
from edgecloud.errors import BadRequest, EdgeCloudError, Overloaded, UpstreamError
from edgecloud.http.drain import Drain
from edgecloud.metrics import Metrics
from edgecloud.router.ledger import Ledger
from edgecloud.settings import PoolEntry, Settings
from edgecloud.types import ChatRequest, EngineEvent, TextDelta, Timings, Usage
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog, FakeEmbedder
from tests.support.live import eventually, live_app
from tests.support.requests import chat, client, frames

QUESTION = "Which colours of the sky are there at noon?"
PRICE = 10.0
DOWN = UpstreamError("It is down.")


class SureEngine(FakeEngine):
    """Finds each of its tokens nearly certain."""

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        async with aclosing(super().generate(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    sure = (dataclasses.replace(each, logprob=-0.01) for each in event.logprobs)
                    event = dataclasses.replace(event, logprobs=tuple(sure))
                yield event


class Forgetful(FakeEngine):
    """Fails the first time, whichever of its addresses is asked."""

    async def generate(self, request: ChatRequest) -> AsyncGenerator[EngineEvent, None]:
        self.refuse = None if self.requests else DOWN
        async with aclosing(super().generate(request)) as events:
            async for event in events:
                yield event


class House:
    """A local engine and a priced pool with two addresses, as a server or as one process after another, and
    all that is written of them.
    """

    def __init__(self, folder: Path, case: Case) -> None:
        self.case = case
        self.pools = (
            PoolEntry(
                name="big",
                url="http://big:8000/v1",
                model="big-70b",
                price_out=PRICE,
                currency=case.currency,
                context=8192,
                replicas=[{"url": SECOND}] if case.has_two else [],
            ),
        )
        settings: dict[str, Any] = {"server": {}, **case.settings}
        self.settings = Settings(
            model="small",
            pool=self.pools,
            **{
                **settings,
                "server": {"drain_s": 0.0, **settings["server"]},
                "router": {"mode": "quality", "cascade": False, **case.router},
            },
        )
        self.small, self.big = SureEngine([case.here.encode()], name="small"), case.big()
        self.folder, self.path = folder, folder / "edgecloud.db"
        self.closings: list[Closing] = []

    async def open(self, _: Settings | None = None) -> Gateway:
        """A gateway of a process of its own."""
        catalog = FakeCatalog([self.small, self.big], FakeEmbedder(), self.pools)
        catalog.engines[SECOND] = self.big

        async def embedder() -> Embedder:
            return FakeEmbedder()

        gateway = Gateway(
            self.settings,
            catalog,
            Journal(lambda: History(self.path)),
            Books(lambda: Ledger(self.path)),
            Memory(self.settings, lambda: AnswerCache(self.folder / "cache.db"), embedder),
        )
        for upstream in (await gateway.routing.engines.all()).values():
            for _ in range(self.case.known):
                upstream.estimates.learn(Usage(10, 10), Timings(ttft_s=0.02, decode_s=1.0))
        gateway.watchers.append(self.closings.append)
        return gateway

    @contextlib.contextmanager
    def serving(self) -> Iterator[httpx.Client]:
        drain, gateway = Drain(), asyncio.run(self.open())
        app = create_app(gateway, self.settings, drain=drain, metrics=Metrics())
        headers = {"authorization": f"Bearer {KEY}"} if self.settings.server.keys else {}
        with (
            live_app(app, drain, 0.0, gateway.aclose) as live,
            client(live.url, headers=headers) as http,
        ):
            yield http

    def run(self, *arguments: str) -> Result:
        """A command, in a process of its own."""
        state = State(open_gateway=self.open)
        result = CliRunner().invoke(edgecloud, list(arguments), obj=state)
        if isinstance(result.exception, EdgeCloudError):
            result.exit_code = exit_code(result.exception)
        return result


@dataclasses.dataclass(frozen=True)
class Case:
    """What happens: the pool's engine, settings, what is asked and with which headers or options, and what
    must be told of it. `known` answers taught how fast the engines are; `before` it was asked that often.
    """

    big: Callable[[], FakeEngine]
    engine: str
    outcomes: tuple[tuple[str, str], ...]
    says: str
    status: int = 200
    code: str = "ok"
    exit: int = 0
    router: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    options: tuple[str, ...] = ()
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    model: str = "auto"
    question: str = QUESTION
    before: int = 0
    here: str = "It is here."
    has_two: bool = False
    known: int = 0
    verdict: str = "miss"

    @property
    def currency(self) -> str:
        return str(self.settings.get("budget", {}).get("currency", "USD"))

    @property
    def is_for_keys(self) -> bool:
        return bool(self.settings.get("server"))


def good() -> FakeEngine:
    return FakeEngine([b"It", b" is", b" there", b"."], name="big", local=False)


def broken(error: EdgeCloudError = DOWN) -> FakeEngine:
    return FakeEngine(name="big", local=False, refuse=error)


SECOND = "http://second:8000/v1"
EURO = {"currency": "EUR"}
DRAFTS = {"mode": "balanced", "cascade": True, "floor": 0.3}
KEY = "a-key-of-sixteen-letters"
COLD, WARM = {"temperature": 0}, {"temperature": 0.5}

ANSWERED = {
    "first choice": Case(good, "big", (("big", "ok"),), "big was tried first"),
    "local": Case(
        good,
        "small",
        (("small", "ok"),),
        "Taken by mode (mode_local)",
        headers={"x-edgecloud-mode": "local"},
        options=("--mode", "local"),
    ),
    "named": Case(good, "small", (("small", "ok"),), "Only one engine was meant", model="small"),
    "pool that is named": Case(good, "big", (("big", "ok"),), "big was tried first", model="big"),
    "exact hit": Case(
        good, "big", (), "so nobody was asked: big", before=1, verdict="exact", settings={"budget": EURO}
    ),
    "similar hit": Case(
        good, "big", (), "so nobody was asked: big", before=1, verdict="semantic", fields=WARM
    ),
    "fresh": Case(
        good,
        "big",
        (("big", "ok"),),
        "big was tried first",
        before=1,
        headers={"x-edgecloud-fresh": "true"},
        options=("--fresh",),
    ),
    "fallback": Case(broken, "small", (("big", "upstream_failed"), ("small", "ok")), "big was tried first"),
    "second address": Case(
        lambda: Forgetful([b"It"], name="big", local=False),
        "big",
        (("big", "upstream_failed"), ("big", "ok")),
        "big was tried first",
        has_two=True,
    ),
    "hedge": Case(
        lambda: FakeEngine(name="big", local=False, hang_at=0),
        "small",
        (("big", "outrun"), ("small", "ok")),
        "big was tried first",
        router={"hedge": 0.2},
        known=8,
    ),
    "continuation": Case(
        lambda: FakeEngine([b"It", b" is", b" there"], name="big", local=False, fail_at=2, error=DOWN),
        "big",
        (("big", "upstream_failed"), ("small", "ok")),
        "big was tried first",
        router={"continue_elsewhere": True},
    ),
    "draft that is kept": Case(good, "small", (("small", "ok"),), "small drafts", router=DRAFTS),
    "draft that is not": Case(
        good,
        "big",
        (("small", "rejected"), ("big", "ok")),
        "small drafts",
        router=DRAFTS,
        here="I can't help with that.",
    ),
}

REFUSED = {
    "by mode": Case(
        good,
        "",
        (),
        "It was refused: ",
        403,
        "no_permitted_route",
        3,
        model="big",
        headers={"x-edgecloud-mode": "local"},
        options=("--mode", "local"),
    ),
    "by privacy": Case(
        good,
        "",
        (),
        "the request is private (it holds a card number)",
        403,
        "no_permitted_route",
        3,
        model="big",
        question="My card is 4539 1488 0343 6467.",
        settings={"budget": EURO},
    ),
    "by offline mode": Case(
        good,
        "",
        (),
        "offline mode is on",
        403,
        "no_permitted_route",
        3,
        model="big",
        settings={"offline": True},
    ),
    "by capability": Case(
        good, "", (), "the context holds", 400, "context_length_exceeded", 1, question="word " * 20_000
    ),
    "by its breaker": Case(
        lambda: broken(Overloaded("Busy.", retry_after=1000.0)),
        "",
        (),
        "big rests for",
        503,
        "unavailable",
        1,
        model="big",
        before=1,
    ),
    "by its key": Case(
        good,
        "",
        (),
        "is not among the engines of the key ci",
        403,
        "no_permitted_route",
        3,
        model="big",
        settings={"server": {"keys": [{"name": "ci", "key": KEY, "engines": ["small"]}]}},
    ),
    "by money": Case(
        good,
        "",
        (),
        "The budget does not allow",
        402,
        "budget_exceeded",
        4,
        model="big",
        settings={"budget": {"per_day": 0.0}},
    ),
    "by time": Case(
        good,
        "",
        (),
        "No engine is expected to answer in time",
        504,
        "deadline_exceeded",
        5,
        model="big",
        headers={"x-request-deadline-ms": "300"},
        options=("--timeout", "0.3"),
        known=8,
    ),
    "by the engine": Case(
        lambda: broken(BadRequest("It takes no such thing.", param="logit_bias")),
        "big",
        (("big", "failed"),),
        "big was tried first",
        400,
        "failed",
        2,
        model="big",
    ),
    "by everybody": Case(
        broken,
        "big",
        (("big", "upstream_failed"),),
        "big was tried first",
        502,
        "upstream_failed",
        1,
        model="big",
    ),
}


@dataclasses.dataclass(frozen=True)
class Telling:
    """What the caller was told of one request: `receipt` where all of it comes with the answer."""

    id: str
    status: int
    code: str
    receipt: dict[str, Any] | None = None
    answer: httpx.Response | None = None


def over_http(house: House, *, stream: bool) -> Telling:
    case = house.case
    body = chat(case.question, stream=stream, model=case.model, **(case.fields or COLD))
    headers = {"x-edgecloud-cache": "on", **case.headers}
    with house.serving() as http:
        for _ in range(case.before + 1):
            answer = http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == case.status, answer.text
    id = answer.headers["x-request-id"]
    if case.status == 200:
        return Telling(id, 0, "ok", answer=answer)
    return Telling(id, case.exit, answer.json()["error"]["code"] or "failed", answer=answer)


def by_command(house: House, *, stream: bool) -> Telling:
    case = house.case
    temperature = (case.fields or COLD)["temperature"]
    options = ["-m", case.model, "--temperature", str(temperature), "--json", *case.options]
    for _ in range(case.before + 1):
        done = house.run("ask", case.question, *options, *(["--stream"] if stream else []))
    told = json.loads(done.stdout.splitlines()[-1])
    id = house.closings[-1].receipt.id
    if case.status == 200:
        assert told["id"] == id
        return Telling(id, done.exit_code, "ok", told["receipt"])
    error = told if stream else told["error"]
    assert error["exit"] == done.exit_code
    return Telling(id, done.exit_code, error["code"] or "failed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").touch()
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    monkeypatch.setattr(routing, "HedgeBudget", lambda share: HedgeBudget(5 * share))
    return tmp_path


QUICK = {
    ("first choice", over_http, False),
    ("exact hit", over_http, True),
    ("fallback", by_command, True),
    ("draft that is not", over_http, False),
    ("by privacy", by_command, False),
}
"""A look at each telling; the slow lane looks at all."""


def tellings() -> Iterator[Any]:
    for name in (*ANSWERED, *REFUSED):
        for ask, door in ((over_http, "http"), (by_command, "ask")):
            for stream, how in ((False, "whole"), (True, "streamed")):
                marks = () if (name, ask, stream) in QUICK else (pytest.mark.slow,)
                yield pytest.param(name, ask, stream, id=f"{name}, {door}, {how}", marks=marks)


@pytest.mark.parametrize(("name", "ask", "stream"), [*tellings()])
def test_all_that_is_told_of_a_request_is_the_same(
    home: Path, name: str, ask: Callable[..., Telling], stream: bool
) -> None:
    case = {**ANSWERED, **REFUSED}[name]
    if ask is by_command and case.is_for_keys:
        pytest.skip("the user of this machine has no key")
    house = House(home, case)

    told = ask(house, stream=stream)

    end = house.closings[-1]
    receipt = json.loads(json.dumps(dataclasses.asdict(end.receipt)))
    assert (told.id, told.status, told.code) == (receipt["id"], case.exit, case.code)
    assert told.receipt in (None, receipt)
    if told.answer is not None and case.status == 200:
        assert_headers(told.answer, receipt, whole=not stream)
    # It says what happened.
    assert (receipt["engine"], receipt["cache"]["verdict"]) == (
        case.engine,
        case.verdict if case.status == 200 else receipt["cache"]["verdict"],
    )
    assert sorted((a["engine"], a["outcome"]) for a in receipt["attempts"]) == sorted(case.outcomes)
    paid = sum(tried.usage.completion_tokens for tried in end.tried if tried.engine == "big")
    assert receipt["cost"] == pytest.approx(paid * PRICE / 1e6)
    assert (receipt["mode"], receipt["currency"]) == (end_mode(case), case.currency)
    assert_written(house, receipt)


def end_mode(case: Case) -> str:
    """The mode that held, whoever answered; a local model that is named is asked without a router."""
    asked = case.headers.get("x-edgecloud-mode")
    return asked or ("auto" if case.model == "small" else case.router.get("mode", "quality"))


def assert_written(house: House, receipt: dict[str, Any]) -> None:
    """The ledger, the history and all that reads them tell the same, over HTTP and in another process."""
    case = house.case
    with house.serving() as http:
        story = http.get("/route/explain", params={"id": receipt["id"]}).json()
    assert story["receipt"] == receipt
    assert story["outcome"] == case.code
    assert [(each["engine"], each["outcome"]) for each in story["attempts"]] == [
        (attempt["engine"], attempt["outcome"]) for attempt in receipt["attempts"]
    ]
    assert story["cost"] == pytest.approx(receipt["cost"]) == sum(each["cost"] for each in story["attempts"])
    assert case.says in "\n".join(story["sentences"])
    assert json.loads(house.run("why", receipt["id"], "--json").stdout) == story
    why = house.run("why", receipt["id"]).stdout
    assert all(sentence in why for sentence in story["sentences"])
    summed = json.loads(house.run("stats", "--json").stdout)
    of_engine = next(each for each in summed["engines"] if each["engine"] == case.engine)
    assert of_engine["requests"] == case.before + (case.engine != "" or case.before == 0)
    assert of_engine["cache_hits"] == (receipt["cache"]["entry_id"] is not None)
    with closing(Ledger(house.path)) as ledger:
        assert ledger.recent(1)[0]["id"] == receipt["id"]
        assert sum(reserved for _, reserved in ledger.sums(house.closings[-1].limits)) == 0
    with closing(History(house.path)) as history:
        stored = history.decision(receipt["id"])
        if receipt["attempts"] or receipt["cache"]["entry_id"]:
            assert stored is not None
            assert {key: value for key, value in stored.items() if key != "chat_id"} == receipt


def test_a_request_whose_caller_left_is_told_of_alike(home: Path) -> None:
    case = Case(
        lambda: FakeEngine([b"It", b" is", b" there"], name="big", local=False, hang_at=2),
        "big",
        (("big", "interrupted"),),
        "big was tried first",
        code="interrupted",
        settings={"budget": {"per_day": 1.0}},
    )
    house = House(home, case)
    with house.serving() as http:
        body = chat(QUESTION, stream=True)
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert " is" in next(piece for piece in answer.iter_text() if " is" in piece)
        eventually(lambda: house.closings)
    receipt = json.loads(json.dumps(dataclasses.asdict(house.closings[-1].receipt)))
    assert receipt["id"] == answer.headers["x-edgecloud-id"]
    assert receipt["reason"] == answer.headers["x-edgecloud-reason"]
    assert (receipt["completion_tokens"], receipt["cost"]) == (2, pytest.approx(2 * PRICE / 1e6))
    assert_written(house, receipt)


def assert_headers(answer: httpx.Response, receipt: dict[str, Any], *, whole: bool) -> None:
    headers = answer.headers
    assert headers["x-edgecloud-id"] == receipt["id"]
    assert headers["x-edgecloud-route"] == receipt["engine"]
    assert headers["x-edgecloud-model"] == receipt["model"]
    assert headers["x-edgecloud-reason"] == receipt["reason"]
    verdict, _, rest = headers["x-edgecloud-cache"].partition("; ")
    assert verdict == receipt["cache"]["verdict"]
    assert (receipt["cache"]["entry_id"] or "") in rest
    if not whole:
        assert frames(answer.text)[-1] == "[DONE]"
        return
    attempts = [f"{each['engine']}={each['outcome']}" for each in receipt["attempts"]]
    assert headers["x-edgecloud-attempts"] == ", ".join(attempts)
    assert headers["x-edgecloud-cost"] == f"{receipt['cost']:.9f} {receipt['currency']}"
    assert answer.json()["usage"]["completion_tokens"] == receipt["completion_tokens"]
