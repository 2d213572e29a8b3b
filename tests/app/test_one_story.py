"""Receipt, ledger, history, headers, `why` and `stats` tell one story of a request, whatever became of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from edgecloud.app.books import Books
from edgecloud.app.cli.main import edgecloud
from edgecloud.app.cli.shell import State
from edgecloud.app.gateway import Gateway
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.memory import Memory
from edgecloud.app.proxy.app import create_app
from edgecloud.app.run import Closing
from edgecloud.cache.answers import AnswerCache
from edgecloud.engine import Embedder
from edgecloud.errors import UpstreamError
from edgecloud.http.drain import Drain
from edgecloud.metrics import Metrics
from edgecloud.router.ledger import Ledger
from edgecloud.settings import PoolEntry, ServerSettings, Settings
from edgecloud.types import ChatRequest, EngineEvent, TextDelta
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog, FakeEmbedder
from tests.support.live import live_app
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


class House:
    """A server over a local engine and a priced pool, and all that it wrote."""

    def __init__(
        self, folder: Path, big: FakeEngine, router: dict[str, Any], *, here: str = "It is here."
    ) -> None:
        entry = PoolEntry(name="big", url="http://big:8000/v1", model="big-70b", price_out=PRICE)
        self.settings = Settings(
            model="small",
            pool=(entry,),
            server=ServerSettings(drain_s=0.0),
            router={"mode": "quality", "cascade": False, **router},  # type: ignore[arg-type]
        )
        self.small = SureEngine([here.encode()], name="small")
        self.path = folder / "edgecloud.db"
        catalog = FakeCatalog([self.small, big], FakeEmbedder(), (entry,))

        async def embedder() -> Embedder:
            return FakeEmbedder()

        self.gateway = Gateway(
            self.settings,
            catalog,
            Journal(lambda: History(self.path)),
            Books(lambda: Ledger(self.path)),
            Memory(self.settings, lambda: AnswerCache(folder / "cache.db"), embedder),
        )
        self.closings: list[Closing] = []
        self.gateway.watchers.append(self.closings.append)

    @contextlib.contextmanager
    def serving(self) -> Iterator[httpx.Client]:
        drain = Drain()
        app = create_app(self.gateway, self.settings, drain=drain, metrics=Metrics())
        with live_app(app, drain, 0.0, self.gateway.aclose) as live, client(live.url) as http:
            yield http


@dataclasses.dataclass(frozen=True)
class Case:
    """What happens: the pool's engine, settings, the request's headers, and what must be told of it."""

    big: Callable[[], FakeEngine]
    engine: str
    outcomes: tuple[tuple[str, str], ...]
    says: str
    status: int = 200
    router: dict[str, Any] = dataclasses.field(default_factory=dict)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    model: str = "auto"
    before: int = 0
    here: str = "It is here."


def good() -> FakeEngine:
    return FakeEngine([b"It", b" is", b" there", b"."], name="big", local=False)


DRAFTS = {"mode": "balanced", "cascade": True, "floor": 0.3}

CASES = {
    "first choice": Case(good, "big", (("big", "ok"),), "big was tried first"),
    "cache hit": Case(
        good, "big", (), "so nobody was asked: big", headers={"x-edgecloud-cache": "on"}, before=1
    ),
    "fallback": Case(
        lambda: FakeEngine(name="big", local=False, refuse=DOWN),
        "small",
        (("big", "upstream_failed"), ("small", "ok")),
        "big was tried first",
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
    "refused": Case(
        good,
        "",
        (),
        "It was refused: ",
        status=403,
        headers={"x-edgecloud-private": "true"},
        model="big",
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_all_that_is_told_of_a_request_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stream: bool
) -> None:
    case = CASES[name]
    monkeypatch.setenv("EDGECLOUD_HOME", str(tmp_path))
    monkeypatch.setenv("EDGECLOUD_CONFIG", str(tmp_path / "config.toml"))
    house = House(tmp_path, case.big(), case.router, here=case.here)
    body = chat(QUESTION, stream=stream, temperature=0, model=case.model)
    with house.serving() as http:
        for _ in range(case.before + 1):
            answer = http.post("/v1/chat/completions", json=body, headers=case.headers)
        assert answer.status_code == case.status, answer.text
        end = house.closings[-1]
        receipt = end.receipt
        story = http.get("/route/explain", params={"id": receipt.id}).json()

    # The receipt says what happened.
    assert (receipt.engine, tuple((a.engine, a.outcome) for a in receipt.attempts)) == (
        case.engine,
        case.outcomes,
    )
    paid = sum(tried.usage.completion_tokens for tried in end.tried if tried.engine == "big")
    assert receipt.cost == pytest.approx(paid * PRICE / 1e6)
    # The ledger says the same, word for word.
    told = json.loads(json.dumps(dataclasses.asdict(receipt)))
    assert story["receipt"] == told
    assert [(each["engine"], each["outcome"]) for each in story["attempts"]] == [
        (attempt["engine"], attempt["outcome"]) for attempt in told["attempts"]
    ]
    assert story["cost"] == pytest.approx(receipt.cost) == sum(each["cost"] for each in story["attempts"])
    assert case.says in "\n".join(story["sentences"])
    # So do the headers, as far as they know.
    if case.status == 200:
        assert_headers(answer, told, whole=not stream)
    assert answer.headers["x-request-id"] == receipt.id
    # So does the command line, in another process's time.
    printed = CliRunner().invoke(edgecloud, ["why", receipt.id, "--json"], obj=State())
    assert json.loads(printed.stdout) == story
    summed = json.loads(CliRunner().invoke(edgecloud, ["stats", "--json"], obj=State()).stdout)
    of_engine = next(each for each in summed["engines"] if each["engine"] == case.engine)
    assert of_engine["requests"] == case.before + 1
    assert of_engine["cache_hits"] == (receipt.cache.entry_id is not None)
    # So does the history, with the text that was shown.
    with closing(History(house.path)) as history:
        stored = history.decision(receipt.id)
        if case.outcomes or receipt.cache.entry_id:
            assert stored is not None
            assert {key: value for key, value in stored.items() if key != "chat_id"} == told


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
    assert headers["x-edgecloud-cost"] == f"{receipt['cost']:.9f} USD"
    assert answer.json()["usage"]["completion_tokens"] == receipt["completion_tokens"]
