"""The router over HTTP: what headers ask for and tell, refusals, and who may see why."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgecloud.app.books import Books
from edgecloud.app.history import History
from edgecloud.app.journal import Journal
from edgecloud.app.keys import KeyDesk
from edgecloud.app.proxy.app import create_app
from edgecloud.errors import NoPermittedRoute, Overloaded, UpstreamError
from edgecloud.http.drain import Drain
from edgecloud.http.keys import tenant_of
from edgecloud.metrics import Metrics
from edgecloud.router.ledger import Ledger
from edgecloud.settings import PoolEntry, ServerSettings, Settings
from edgecloud.types import ChatRequest
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import fake_gateway
from tests.support.live import live_app
from tests.support.requests import chat, client, frames

PRIVATE = {"x-edgecloud-private": "true"}
KEY = "a-key-of-sixteen-letters"


@contextlib.contextmanager
def house(
    folder: Path,
    *,
    big: FakeEngine | None = None,
    small: FakeEngine | None = None,
    price: float = 0.0,
    keys: tuple[str, ...] = (),
    limited: tuple[dict[str, Any], ...] = (),
    attempts: int = 4,
    with_history: bool = False,
    **settings: Any,
) -> Iterator[httpx.Client]:
    """A server with a local engine `small` and a pool `big`."""
    big = big or FakeEngine([b"pool"], name="big", local=False)
    entries = (PoolEntry(name="big", url="http://big:8000/v1", model="big-70b", price_out=price),)
    made = Settings(
        model="small",
        pool=entries,
        server=ServerSettings.model_validate({"drain_s": 0.0, "api_keys": keys, "keys": limited}),
        router={"cascade": False, "mode": "quality", "attempts": attempts},  # type: ignore[arg-type]
        **settings,
    )
    small = small or FakeEngine([b"local"], name="small")
    books = Books(lambda: Ledger(folder / "edgecloud.db"))
    gateway = fake_gateway(small, big, settings=made, books=books)
    if with_history:
        gateway.journal = Journal(lambda: History(folder / "edgecloud.db"))
    drain = Drain()
    app = create_app(gateway, made, drain=drain, metrics=Metrics())
    with live_app(app, drain, 0.0, gateway.aclose) as live, client(live.url) as http:
        yield http


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({}, "pool"),
        (PRIVATE, "local"),
        ({"x-edgecloud-mode": "LOCAL"}, "local"),
        ({"x-edgecloud-private": "0"}, "pool"),
        ({"x-edgecloud-private": "please"}, "local"),
    ],
)
def test_headers_decide_where_a_request_goes(tmp_path: Path, headers: dict[str, str], text: str) -> None:
    with house(tmp_path) as http:
        assert text_of(http.post("/v1/chat/completions", json=chat(), headers=headers)) == text


@pytest.mark.parametrize("headers", [{"x-edgecloud-fresh": "maybe"}, {"x-edgecloud-mode": "fastest"}])
def test_a_header_that_nobody_understands_is_an_error(tmp_path: Path, headers: dict[str, str]) -> None:
    with house(tmp_path) as http:
        answer = http.post("/v1/chat/completions", json=chat(), headers=headers)
    assert answer.status_code == 400
    assert next(iter(headers)) in answer.json()["error"]["message"]


def test_refusals_have_their_status_and_must_not_be_retried(tmp_path: Path) -> None:
    with house(tmp_path, price=1000.0, budget={"per_day": 0.0}) as http:
        private = http.post("/v1/chat/completions", json=chat(model="big"), headers=PRIVATE)
        poor = http.post("/v1/chat/completions", json=chat(model="big"))
    told = [
        (each.status_code, each.json()["error"]["code"], each.headers["x-should-retry"])
        for each in (private, poor)
    ]
    assert told == [(403, "no_permitted_route", "false"), (402, "budget_exceeded", "false")]


# cases: R29
@pytest.mark.parametrize("stream", [False, True])
def test_headers_ledger_and_explanation_tell_the_same_story(tmp_path: Path, stream: bool) -> None:
    with house(tmp_path, price=10.0) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=stream))
        request_id = answer.headers["x-edgecloud-id"]
        story = http.get("/route/explain", params={"id": request_id}).json()
    receipt = story["receipt"]
    assert answer.headers["x-edgecloud-route"] == receipt["engine"]
    assert answer.headers["x-edgecloud-reason"] == receipt["reason"]
    assert story["decision"]["candidates"][0]["engine"] == "big"
    assert story["sentences"]
    if not stream:
        assert answer.headers["x-edgecloud-attempts"] == "big=ok"
        assert answer.headers["x-edgecloud-cost"] == f"{story['cost']:.9f} USD"
        assert story["cost"] == pytest.approx(10 / 1e6)


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat(),
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"model": "auto", "input": "hi"},
    "/v1/messages": {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}


# cases: R29
@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_keeps_a_private_request_here_and_pays_from_the_same_budget(
    tmp_path: Path, path: str
) -> None:
    big = FakeEngine([b"pool"], name="big", local=False)
    body = {**BODIES[path], "model": "big"}
    with house(tmp_path, big=big, price=10.0, budget={"per_day": 0.00001, "answer_tokens": 1}) as http:
        assert http.post(path, json=BODIES[path], headers=PRIVATE).status_code == 200
        assert http.post(path, json=body, headers=PRIVATE).status_code == 403
        assert big.requests == []
        paid = {"max_tokens": 1} if "responses" not in path else {"max_output_tokens": 1}
        assert http.post(path, json={**body, **paid}).status_code == 200
        assert http.post(path, json={**body, **paid}).status_code == 402
    assert len(big.requests) == 1


# cases: R4 R6
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_falls_back_streamed_or_not(tmp_path: Path, path: str, stream: bool) -> None:
    down = FakeEngine(name="big", local=False, fail_at=0, error=UpstreamError("It is down."))
    with house(tmp_path, big=down) as http:
        answer = http.post(path, json={**BODIES[path], "stream": stream})
    assert (answer.status_code, answer.headers["x-edgecloud-route"]) == (200, "small")
    assert "local" in answer.text
    assert "It is down. small answers instead." in answer.text
    assert len(down.requests) == 1


class Told(FakeEngine):
    """Remembers what it was told to count, cut or join, as a server elsewhere would."""

    def __init__(self) -> None:
        super().__init__([b"pool"], name="big", local=False)
        self.told: list[Any] = []

    async def count_tokens(self, request: ChatRequest) -> int:
        self.told.append(request)
        return await super().count_tokens(request)

    async def tokenize(self, text: str, **how: bool) -> list[int]:
        self.told.append(text)
        return await super().tokenize(text, **how)

    async def detokenize(self, ids: Sequence[int]) -> str:
        self.told.append(ids)
        return await super().detokenize(ids)


COUNTING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions/input_tokens", chat("hi there", model="big")),
    ("/v1/messages/count_tokens", chat("hi there", model="big")),
    ("/v1/responses/input_tokens", {"input": "hi there", "model": "big"}),
    ("/tokenize", chat("hi there", model="big")),
    ("/tokenize", {"content": "hi there", "model": "big"}),
    ("/detokenize", {"tokens": [104, 105], "model": "big"}),
]


# cases: R46
@pytest.mark.parametrize("why", ["a header", "the mode", "offline mode", "its key", "a rule"])
def test_who_may_not_see_a_text_is_not_asked_to_count_it(tmp_path: Path, why: str) -> None:
    big, headers, settings = Told(), dict[str, str](), dict[str, Any]()
    match why:
        case "a header":
            headers = PRIVATE
        case "the mode":
            headers = {"x-edgecloud-mode": "local"}
        case "offline mode":
            settings = {"offline": True}
        case "its key":
            headers = {"authorization": f"Bearer {KEY}"}
            settings = {"limited": ({"name": "ci", "key": KEY, "engines": ["small"]},)}
        case "a rule":
            settings = {"privacy": {"rules": [{"name": "greeting", "pattern": "hi"}]}}
    with house(tmp_path, big=big, **settings) as http:
        answers = [http.post(path, json=body, headers=headers) for path, body in COUNTING]
    assert [answer.status_code for answer in answers] == [403] * len(COUNTING)
    assert all("big" in answer.text for answer in answers)
    assert big.told == []


def test_who_may_see_a_text_counts_it_whatever_an_answer_costs(tmp_path: Path) -> None:
    big, counting = Told(), COUNTING[:-1]  # nobody can judge bare token ids, so they stay here
    with house(tmp_path, big=big, price=1.0, budget={"per_day": 0.0}) as http:
        statuses = [http.post(path, json=body).status_code for path, body in counting]
    assert statuses == [200] * len(counting)
    assert len(big.told) == len(counting)


def test_a_stream_falls_back_before_its_first_byte(tmp_path: Path) -> None:
    down = FakeEngine(name="big", local=False, refuse=UpstreamError("It is down."))
    with house(tmp_path, big=down) as http:
        answer = http.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.headers["x-edgecloud-route"] == "small"
    pieces = [
        frame["choices"][0]["delta"].get("content") or ""
        for frame in frames(answer.text)[:-1]
        if frame["choices"]
    ]
    assert "".join(pieces) == "local"


def test_a_key_sees_its_own_requests_only(tmp_path: Path) -> None:
    with house(tmp_path, keys=("one", "two")) as http:
        mine, other = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        answer = http.post("/v1/chat/completions", json=chat("a secret"), headers=mine)
        asked = {"id": answer.headers["x-edgecloud-id"]}
        seen = http.get("/route/explain", params=asked, headers=mine)
        hidden = http.get("/route/explain", params=asked, headers=other)
        unsaid = http.get("/route/explain", headers=mine)
    assert (seen.status_code, hidden.status_code, unsaid.status_code) == (200, 404, 400)
    assert "secret" not in seen.text


def test_a_dry_run_decides_and_asks_nobody(tmp_path: Path) -> None:
    big = FakeEngine([b"pool"], name="big", local=False)
    with house(tmp_path, big=big) as http:
        planned = http.post("/route/explain", json=chat()).json()
        refused = http.post("/route/explain", json=chat(model="big"), headers=PRIVATE)
    assert planned["decision"]["candidates"][0]["engine"] == "big"
    assert refused.status_code == 403
    assert big.requests == []


# cases: R25
def test_operators_see_which_engine_rests_and_why(tmp_path: Path) -> None:
    busy = FakeEngine(name="big", local=False, refuse=Overloaded("Too much to do.", retry_after=30))
    with house(tmp_path, big=busy) as http:
        http.post("/v1/chat/completions", json=chat())
        engines = {each["engine"]: each for each in http.get("/health/router").json()["engines"]}
        metrics = http.get("/metrics").text
    (address,) = engines["big"]["addresses"]
    assert (address["state"], address["reason"]) == ("open", "Too much to do.")
    assert 25 < address["retry_in_s"] <= 30
    assert engines["small"]["addresses"][0]["state"] == "closed"
    assert 'edgecloud_address_resting{address="big:8000",engine="big"} 1.0' in metrics
    assert 'edgecloud_attempts_total{engine="big",outcome="queue_full"} 1.0' in metrics
    assert 'edgecloud_attempts_total{engine="small",outcome="ok"} 1.0' in metrics


# cases: R11 R13
def test_a_request_waits_for_an_engine_that_comes_back_in_time(tmp_path: Path) -> None:
    engine = FakeEngine([b"pool"], name="big", local=False, refuse=Overloaded("Busy.", retry_after=0.5))
    with house(tmp_path, big=engine, attempts=1) as http:
        refused = http.post("/v1/chat/completions", json=chat(model="big"))
        assert (refused.status_code, len(engine.requests)) == (429, 1)
        engine.refuse = None
        began = time.monotonic()
        assert text_of(http.post("/v1/chat/completions", json=chat(model="big"))) == "pool"
        assert time.monotonic() - began >= 0.3, "it was asked while it rested"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_key_is_answered_by_its_own_engines_only(tmp_path: Path) -> None:
    big = FakeEngine([b"pool"], name="big", local=False)
    limited = ({"name": "ci", "key": "k1", "engines": ("small",)}, {"name": "rich", "key": "k2"})
    with house(tmp_path, big=big, limited=limited) as http:
        path = "/v1/chat/completions"
        assert text_of(http.post(path, json=chat(), headers=bearer("k1"))) == "local"
        refused = http.post(path, json=chat(model="big"), headers=bearer("k1"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "no_permitted_route")
        assert big.requests == []
        assert text_of(http.post(path, json=chat(model="big"), headers=bearer("k2"))) == "pool"
        assert http.post(path, json=chat()).status_code == 401


def test_a_key_is_shown_what_it_may_ask_for(tmp_path: Path) -> None:
    limited = ({"name": "ci", "key": "k1", "engines": ("small",)}, {"name": "rich", "key": "k2"})
    with house(tmp_path, limited=limited) as http:
        listed = {
            key: [card["id"] for card in http.get("/v1/models", headers=bearer(key)).json()["data"]]
            for key in ("k1", "k2")
        }
        hidden, shown = (http.get("/v1/models/big", headers=bearer(key)) for key in ("k1", "k2"))
    assert set(listed["k2"]) - set(listed["k1"]) == {"big"}
    assert {"auto", "small"} < set(listed["k1"])
    assert (hidden.status_code, shown.status_code) == (404, 200)
    assert "big" not in hidden.json()["error"]["message"].partition("Known:")[2]


def test_a_key_that_may_not_use_the_model_it_names_is_refused_without_a_router(tmp_path: Path) -> None:
    with house(tmp_path, limited=({"name": "ci", "key": "k1", "engines": ("big",)},)) as http:
        answer = http.post("/v1/chat/completions", json=chat(model="small"), headers=bearer("k1"))
    assert answer.status_code == 403
    assert "the key ci" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("model", "statuses"), [("big", [200, 403, 403]), ("small", [200, 200, 403])])
def test_a_key_is_refused_when_its_day_is_used_up(tmp_path: Path, model: str, statuses: list[int]) -> None:
    # An answer takes three tokens. The router looks ahead at what the next one may take.
    limited = ({"name": "ci", "key": "k1", "tokens_per_day": 6},)
    body = chat(model=model, max_tokens=1)
    with house(tmp_path, limited=limited) as http:
        answers = [http.post("/v1/chat/completions", json=body, headers=bearer("k1")) for _ in range(3)]
    assert [answer.status_code for answer in answers] == statuses


@pytest.mark.parametrize("model", ["big", "small", "auto"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_key_is_refused_what_needs_more_than_is_left_of_its_day(
    tmp_path: Path, model: str, stream: bool
) -> None:
    limited = ({"name": "ci", "key": "k1", "tokens_per_day": 200},)
    big = FakeEngine([b"word"] * 150, name="big", local=False)
    small = FakeEngine([b"word"] * 150, name="small")
    body = chat(model=model, max_tokens=150, stream=stream)
    with house(tmp_path, big=big, small=small, limited=limited) as http:
        first, second = (http.post("/v1/chat/completions", json=body, headers=bearer("k1")) for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 403)
    assert "the key ci" in second.json()["error"]["message"].replace("The", "the")


async def test_answers_under_way_count_for_the_day_of_their_key(tmp_path: Path) -> None:
    settings = Settings(
        server=ServerSettings.model_validate({"keys": [{"name": "ci", "key": "k1", "tokens_per_day": 10}]})
    )
    books = Books(lambda: Ledger(tmp_path / "edgecloud.db"))
    tenant = tenant_of(b"k1")
    desk = KeyDesk(settings, books)
    held = await asyncio.gather(
        *(desk.hold(f"r{number}", tenant, 4) for number in range(3)), return_exceptions=True
    )
    assert [type(each) for each in held] == [type(None), type(None), NoPermittedRoute]
    desk.release("r0")
    await desk.hold("r3", tenant, 4)
    await books.aclose()


def test_the_budget_of_a_chat_is_known_before_anybody_is_chosen(tmp_path: Path) -> None:
    asked = chat(model="big", max_tokens=1)
    with house(tmp_path, price=10.0, with_history=True, budget={"per_chat": 0.000015}) as http:
        said = http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]
        turns = [*asked["messages"], said, {"role": "user", "content": "And then?"}]
        same_chat = {**asked, "messages": turns}
        spent = http.post("/v1/chat/completions", json=same_chat)
        planned = http.post("/route/explain", json=same_chat)
        elsewhere = http.post("/v1/chat/completions", json={**same_chat, "model": "auto"})
        new_chat = http.post("/v1/chat/completions", json=chat("Something else", model="big", max_tokens=1))

    assert (spent.status_code, spent.json()["error"]["code"]) == (402, "budget_exceeded")
    assert "the chat's budget" in spent.json()["error"]["message"]
    assert planned.json()["error"]["message"] == spent.json()["error"]["message"]
    assert text_of(elsewhere) == "local"
    assert elsewhere.headers["x-edgecloud-attempts"] == "small=ok"
    assert text_of(new_chat) == "pool"


def test_a_chat_that_would_not_fit_its_budget_is_not_begun(tmp_path: Path) -> None:
    with house(tmp_path, price=10.0, with_history=True, budget={"per_chat": 0.000005}) as http:
        answer = http.post("/v1/chat/completions", json=chat(model="big", max_tokens=1))

    assert answer.status_code == 402
    assert "the chat's budget" in answer.json()["error"]["message"]
