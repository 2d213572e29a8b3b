"""Kept answers over HTTP: only where they are asked for, byte for byte as they came, one key's alone."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgecloud.app.gateway import Gateway
from edgecloud.app.memory import Memory
from edgecloud.app.proxy.app import create_app
from edgecloud.cache.answers import AnswerCache
from edgecloud.engine import Embedder
from edgecloud.http.drain import Drain
from edgecloud.metrics import Metrics
from edgecloud.settings import ServerSettings, Settings
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import FakeCatalog, FakeEmbedder
from tests.support.live import eventually, live_app
from tests.support.requests import chat, client

ON = {"x-edgecloud-cache": "on"}
SKY = "Why is the sky blue?"
VARYING = re.compile(r'"(?:\w*id|created|\w*_at)": ?(?:"[^"]*"|[\d.]+)')
PATHS = {
    "/v1/chat/completions": chat(SKY, temperature=0),
    "/v1/completions": {"prompt": SKY, "model": "fake", "temperature": 0, "max_tokens": 64},
    "/v1/messages": {**chat(SKY, temperature=0), "model": "fake", "max_tokens": 64},
    "/v1/responses": {"input": SKY, "model": "fake", "temperature": 0},
}


@contextlib.contextmanager
def house(
    folder: Path,
    engine: FakeEngine,
    keys: tuple[str, ...] = (),
    clock: Callable[[], float] = time.time,
) -> Iterator[httpx.Client]:
    """A server that keeps answers where it is asked to."""
    settings = Settings(server=ServerSettings.model_validate({"drain_s": 0.0, "api_keys": keys}))

    async def embedder() -> Embedder:
        return FakeEmbedder()

    memory = Memory(settings, lambda: AnswerCache(folder / "cache.db", clock=clock), embedder)
    gateway = Gateway(settings, FakeCatalog([engine]), memory=memory)
    drain = Drain()
    app = create_app(gateway, settings, drain=drain, metrics=Metrics())
    with live_app(app, drain, 0.0, gateway.aclose) as live, client(live.url) as http:
        yield http


def body_of(answer: httpx.Response) -> str:
    """The bytes of an answer without ids and times."""
    assert answer.status_code == 200, answer.text
    return VARYING.sub("", answer.text)


def verdict_of(answer: httpx.Response) -> str:
    return answer.headers["x-edgecloud-cache"].partition(";")[0]


def kept_since(folder: Path) -> float | None:
    """When the newest kept answer was kept."""
    with contextlib.closing(sqlite3.connect(folder / "cache.db")) as connection:
        since: float | None = connection.execute("SELECT max(created) FROM answers").fetchone()[0]
    return since


# cases: R59
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_replay_is_what_came_live(tmp_path: Path, path: str, stream: bool) -> None:
    engine = FakeEngine(thoughts=("Hm.",))
    body: dict[str, Any] = {**PATHS[path], "stream": stream}
    if path.endswith("completions") and stream:
        body["stream_options"] = {"include_usage": True}
    with house(tmp_path, engine) as http:
        live, replayed = (http.post(path, json=body, headers=ON) for _ in range(2))

    assert len(engine.requests) == 1
    assert body_of(replayed) == body_of(live)


def test_nothing_is_kept_or_given_unasked(tmp_path: Path) -> None:
    engine = FakeEngine()
    body = chat(SKY, temperature=0)
    with house(tmp_path, engine) as http:
        verdicts = [
            verdict_of(http.post("/v1/chat/completions", json=body, headers=headers))
            for headers in (
                {},
                ON,
                ON,
                {},
                {**ON, "cache-control": "no-cache"},
                {**ON, "cache-control": "no-store"},
            )
        ]
    assert verdicts == ["off", "miss", "exact", "off", "miss", "off"]
    assert len(engine.requests) == 5


# cases: R53
def test_another_key_s_answer_is_nobody_else_s(tmp_path: Path) -> None:
    engine = FakeEngine()
    with house(tmp_path, engine, keys=("one-key-of-many", "another-of-many")) as http:
        verdicts = [
            verdict_of(
                http.post(
                    "/v1/chat/completions",
                    json=chat(SKY, temperature=0),
                    headers={**ON, "authorization": f"Bearer {key}"},
                )
            )
            for key in ("one-key-of-many", "another-of-many", "one-key-of-many", "another-of-many")
        ]
    assert verdicts == ["miss", "miss", "exact", "exact"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_headers_tell_of_a_kept_answer_before_its_first_word(tmp_path: Path, stream: bool) -> None:
    body = chat(SKY, temperature=0, stream=stream)
    with house(tmp_path, FakeEngine()) as http:
        live, replayed = (http.post("/v1/chat/completions", json=body, headers=ON) for _ in range(2))
    assert live.headers["x-edgecloud-cache"] == "miss"
    told = replayed.headers["x-edgecloud-cache"]
    assert re.fullmatch(r"exact; sim=1\.000; p=1\.000; age=\d+; id=ans-[0-9a-f]{24}", told), told
    assert replayed.headers["x-edgecloud-reason"] == "answered before"


def test_who_wants_a_kept_answer_only_gets_it_or_one_error(tmp_path: Path) -> None:
    engine = FakeEngine()
    body, kept = chat(SKY, temperature=0), {"cache-control": "only-if-cached"}
    with house(tmp_path, engine) as http:
        before = http.post("/v1/chat/completions", json=body, headers=kept)
        http.post("/v1/chat/completions", json=body, headers=ON)
        after = http.post("/v1/chat/completions", json=body, headers=kept)
        never = http.post("/v1/chat/completions", json={**body, "n": 2}, headers=kept)
        unkept = http.post(
            "/v1/chat/completions", json=body, headers={"cache-control": "only-if-cached, no-store"}
        )
    assert [answer.status_code for answer in (before, after, never, unkept)] == [504, 200, 504, 504]
    assert before.json()["error"]["code"] == "not_kept"
    assert before.headers["x-should-retry"] == "false"
    assert len(engine.requests) == 1


def test_an_answer_older_than_is_wanted_is_computed_again(tmp_path: Path) -> None:
    now = [1e9]
    verdicts = []
    with house(tmp_path, FakeEngine(), clock=lambda: now[0]) as http:
        for later_s, age in ((0, "60"), (50, "60"), (20, "60"), (0, "0")):
            now[0] += later_s
            control = {**ON, "cache-control": f"max-age={age}"}
            answer = http.post("/v1/chat/completions", json=chat(SKY, temperature=0), headers=control)
            verdicts.append(verdict_of(answer))
            # An answer is kept aside, and as old as that.
            eventually(lambda: kept_since(tmp_path) == (1e9 if len(verdicts) < 3 else now[0]))
    assert verdicts == ["miss", "exact", "miss", "miss"]


# cases: R59
def test_a_stream_is_replayed_to_everybody_and_a_whole_answer_never_as_a_stream(tmp_path: Path) -> None:
    engine = FakeEngine()
    verdicts, streams = [], []
    with house(tmp_path, engine) as http:
        for stream in (False, False, True, True, False):
            body = chat(SKY, temperature=0, stream=stream)
            answer = http.post("/v1/chat/completions", json=body, headers=ON)
            verdicts.append(verdict_of(answer))
            streams += [body_of(answer)] if stream else []
    assert verdicts == ["miss", "exact", "miss", "exact", "exact"]
    assert streams[0] == streams[1]
