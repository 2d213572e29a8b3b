"""A chat whose server is gone goes on without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edgecloud.app.client import connect
from edgecloud.app.socket_server import SocketServer
from edgecloud.app.tui.lasting import Lasting
from edgecloud.app.tui.ports import Gateway
from edgecloud.errors import Unavailable
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, Message, Start, TextDelta
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import fake_gateway

ASK = ChatRequest(messages=(Message("user", "hi"),))


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SocketServer]:
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    server = SocketServer(fake_gateway(FakeEngine()), "http://127.0.0.1:8484", stop=lambda: None)
    assert await server.start()
    yield server
    await server.aclose()


class Opened:
    """Counts how often a gateway was opened instead."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> Gateway:
        self.count += 1
        return fake_gateway(FakeEngine([b"from here"]))


async def attached(opened: Opened) -> Lasting:
    client = await connect(Settings())
    assert client is not None
    return Lasting(client, opened)


async def text(gateway: Lasting) -> str:
    return "".join([event.text async for event in gateway.chat(ASK) if isinstance(event, TextDelta)])


async def test_what_is_asked_of_a_server_that_is_gone_is_asked_here(server: SocketServer) -> None:
    opened = Opened()
    gateway = await attached(opened)
    assert await text(gateway) == "Hello, world!"
    assert opened.count == 0

    await server.aclose()
    assert "fake" in [card.id for card in await gateway.models()]
    assert (await gateway.health()).ok
    assert await gateway.count_tokens(ASK) > 0
    assert await text(gateway) == "from here"
    assert opened.count == 1
    assert await gateway.aclose() == ""


async def test_an_answer_that_breaks_off_is_not_asked_again(server: SocketServer) -> None:
    opened = Opened()
    gateway = await attached(opened)
    server.gateway.catalog.engines["fake"].hang_at = 1  # type: ignore[attr-defined]
    stream = gateway.chat(ASK)
    assert isinstance(await anext(stream), Start)

    await server.aclose()
    with pytest.raises(Unavailable):
        [event async for event in stream]

    assert opened.count == 0
    assert await text(gateway) == "from here"
