"""Offline, the remote engine talks to this machine only and looks up no name."""

from __future__ import annotations

from typing import Any

import pytest

from edgecloud.errors import NoPermittedRoute
from edgecloud.pool import connection

from .builders import engine_at, gather, good, make_request, text_of
from .scripted_upstream import upstream


@pytest.mark.parametrize(
    "url", ["http://gpu.example/v1", "http://10.0.0.7/v1", "http://localhost.example/v1"]
)
@pytest.mark.parametrize("where", ["settings", "request"])
async def test_offline_refuses_what_is_elsewhere_before_looking_up_its_name(
    url: str, where: str, no_network: list[str]
) -> None:
    async with engine_at(url, offline=where == "settings", local=True) as engine:
        with pytest.raises(NoPermittedRoute, match="offline"):
            await gather(engine, make_request(offline=where == "request"))
        if where == "settings":
            assert (await engine.health()).ok is False
            assert await engine.count_tokens(make_request()) > 0
            assert (await engine.capabilities()).context == 0

    assert no_network == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "pool.localhost"])
async def test_offline_still_talks_to_this_machine_and_looks_up_nothing(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []

    async def look_up(self: Any, name: str, *_: Any, **__: Any) -> Any:
        looked_up.append(name)
        raise OSError

    monkeypatch.setattr(connection.aiohttp.ThreadedResolver, "resolve", look_up)
    async with (
        upstream(good) as server,
        engine_at(server.url.replace("127.0.0.1", host), offline=True, local=True) as engine,
    ):
        assert text_of(await gather(engine)) == "Because of air."

    assert looked_up == []


@pytest.mark.parametrize("where", ["settings", "request"])
async def test_offline_a_loopback_address_alone_proves_nothing(where: str) -> None:
    async with upstream(good) as server, engine_at(server.url, offline=where == "settings") as engine:
        with pytest.raises(NoPermittedRoute, match="offline"):
            await gather(engine, make_request(offline=where == "request"))
        if where == "settings":
            assert (await engine.health()).ok is False
            assert await engine.count_tokens(make_request()) > 0
        assert server.calls == []


async def test_only_the_entry_says_whether_an_answer_is_local() -> None:
    async with engine_at("http://127.0.0.1:1/v1") as away, engine_at("http://gpu/v1", local=True) as here:
        assert (away.local, here.local) == (False, True)
