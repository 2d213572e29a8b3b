"""The private socket: the gateway's methods from another process, cancelled by hanging up."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgecloud.app import client as client_module
from edgecloud.app.cli.serve import serve
from edgecloud.app.client import GatewayClient, Gone, OtherSettings, Silent, Stuck, connect, socket_path
from edgecloud.app.open import open_gateway
from edgecloud.app.socket_server import SocketServer
from edgecloud.errors import ContextLengthExceeded, EdgeCloudError, ModelNotFound, Unavailable
from edgecloud.metrics import Metrics
from edgecloud.settings import RouterSettings, Settings
from edgecloud.types import ChatRequest, EmbedRequest, Finish, Health, Message, Start, TextDelta
from tests.support.fake_engine import FakeEngine
from tests.support.fake_gateway import fake_gateway

ENGINE_CONTEXT = 64


def ask(text: str = "hi", **fields: object) -> ChatRequest:
    return ChatRequest(messages=(Message("user", text),), **fields)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGECLOUD_RUNTIME", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(context=ENGINE_CONTEXT)


@pytest.fixture
async def server(engine: FakeEngine) -> AsyncIterator[SocketServer]:
    server = SocketServer(fake_gateway(engine), "http://127.0.0.1:8484", stop=lambda: stops.append(1))
    stops: list[int] = []
    server.stops = stops  # type: ignore[attr-defined]
    assert await server.start()
    yield server
    await server.aclose()


@pytest.fixture
async def client(server: SocketServer) -> GatewayClient:
    client = await connect(Settings())
    assert client is not None
    return client


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_only_the_user_may_open_the_socket(server: SocketServer, runtime: Path) -> None:
    assert (mode(socket_path()), mode(runtime)) == (0o600, 0o700)


async def test_a_chat_arrives_event_by_event_as_in_process(client: GatewayClient) -> None:
    events = [event async for event in client.chat(ask())]
    assert isinstance(events[0], Start)
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Hello, world!"
    assert isinstance(events[-1], Finish)


async def test_answers_are_counted_as_those_over_http(server: SocketServer, client: GatewayClient) -> None:
    server.metrics = Metrics()
    assert await _text(client) == "Hello, world!"
    server.gateway = fake_gateway(FakeEngine(fail_at=2))
    with pytest.raises(EdgeCloudError):
        await _text(client)

    page = server.metrics.render(Health(True)).decode()
    assert 'edgecloud_generation_tokens_total{model="fake"} 4.0' in page
    assert 'edgecloud_generations_total{model="fake",outcome="done"} 1.0' in page
    assert 'edgecloud_generations_total{model="fake",outcome="failed"} 1.0' in page


async def test_errors_come_through_as_themselves(client: GatewayClient) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        [event async for event in client.chat(ask("word " * 100))]
    assert caught.value.extra == {"n_prompt_tokens": 101, "n_ctx": ENGINE_CONTEXT}
    with pytest.raises(ModelNotFound):
        await client.count_tokens(ask(model="nobody"))


async def test_everything_else_a_door_needs_is_there(client: GatewayClient) -> None:
    assert [card.id for card in await client.models()] == ["auto", "fake", "fake-embedder"]
    assert await client.count_tokens(ask("one two")) == 3
    assert len((await client.embed(EmbedRequest(("a", "b")))).vectors) == 2
    assert (await client.health()).ok
    assert (await client.ping())["url"] == "http://127.0.0.1:8484"


async def test_hanging_up_cancels_the_work(client: GatewayClient, engine: FakeEngine) -> None:
    engine.hang_at = 1
    stream = client.chat(ask())
    while not isinstance(await anext(stream), TextDelta):
        pass
    await stream.aclose()
    for _ in range(200):
        if engine.cancelled:
            break
        await asyncio.sleep(0.01)
    assert engine.cancelled == ["decode"]
    assert (engine.running, engine.waiting) == (0, 0)


async def test_a_server_that_dies_midway_is_one_clear_error(
    server: SocketServer, client: GatewayClient
) -> None:
    server.gateway.catalog.engines["fake"].hang_at = 1  # type: ignore[attr-defined]
    stream = client.chat(ask())
    assert isinstance(await anext(stream), Start)
    await server.aclose()
    with pytest.raises(Unavailable):
        [event async for event in stream]


async def test_a_server_that_is_gone_was_asked_nothing(server: SocketServer, client: GatewayClient) -> None:
    await server.aclose()

    with pytest.raises(Gone, match="start it again"):
        await client.models()
    with pytest.raises(Gone):
        await _text(client)


async def test_another_version_means_run_in_process(
    server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "version", lambda: "0.0.0-other")
    assert await connect(Settings()) is None


async def test_no_server_a_stale_socket_or_nonsense_mean_run_in_process(runtime: Path) -> None:
    assert await connect(Settings()) is None
    os.mkdir(runtime, 0o700)
    socket_path().touch()
    assert await connect(Settings()) is None

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    socket_path().unlink()
    async with await asyncio.start_unix_server(nonsense, socket_path()):
        assert await connect(Settings()) is None


async def test_a_stale_socket_is_taken_over_and_a_live_one_is_not(server: SocketServer) -> None:
    second = SocketServer(fake_gateway(FakeEngine()), "http://127.0.0.1:1", stop=lambda: None)
    assert not await second.start()
    assert await connect(Settings()) is not None
    await second.aclose()
    assert await connect(Settings()) is not None, "the second server removed the first one's socket"
    await server.aclose()
    socket_path().touch()
    assert await second.start()
    await second.aclose()


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"[1]\n", b'{"version": "x"}\n', b"\xff\xfe\n", b"half a line"]
)
async def test_nonsense_from_a_client_hurts_nobody(server: SocketServer, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(socket_path())
    writer.write(line)
    writer.write_eof()
    answer = await reader.read()
    assert answer == b"" or b'"error"' in answer
    writer.close()
    assert await connect(Settings()) is not None


async def test_other_settings_mean_run_in_process_and_end_nothing_but_answers(
    server: SocketServer, client: GatewayClient
) -> None:
    server.settings = Settings(router=RouterSettings(mode="local"))
    with pytest.raises(OtherSettings, match=r"\(router\.mode\)"):
        await connect(Settings())
    with pytest.raises(Unavailable, match=r"\(router\.mode\)") as caught:
        await _text(client)
    assert caught.value.code == "settings_mismatch"
    assert (await client.ping())["differs"] == ["router.mode"]
    await client.stop()
    assert server.stops == [1]  # type: ignore[attr-defined]


async def test_who_does_not_say_what_settings_it_has_is_not_answered(server: SocketServer) -> None:
    silent = GatewayClient(socket_path())
    assert (await silent.ping())["differs"] == []
    with pytest.raises(Unavailable):
        await _text(silent)


async def test_stop_asks_the_server_to_drain(server: SocketServer, client: GatewayClient) -> None:
    await client.stop()
    assert server.stops == [1]  # type: ignore[attr-defined]


async def test_ten_at_once_each_get_their_own_answer(client: GatewayClient) -> None:
    async def one(text: str) -> str:
        return "".join([e.text async for e in client.chat(ask(text)) if isinstance(e, TextDelta)])

    assert await asyncio.gather(*(one(str(i)) for i in range(10))) == ["Hello, world!"] * 10


async def test_a_drain_lets_running_answers_finish_and_sends_new_ones_elsewhere(
    server: SocketServer, client: GatewayClient, engine: FakeEngine
) -> None:
    engine.decode_s = 0.1
    running = asyncio.create_task(_text(client))
    while not engine.generated:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.01)
    server.drain.begin(30)
    assert await connect(Settings()) is None, "a new caller was let in"
    await server.aclose()
    assert await running == "Hello, world!"


async def test_a_drain_that_runs_out_ends_what_still_runs(
    server: SocketServer, client: GatewayClient, engine: FakeEngine
) -> None:
    engine.hang_at = 1
    running = asyncio.create_task(_text(client))
    while not engine.generated:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.01)
    server.drain.begin(0.05)
    await server.aclose()
    with pytest.raises(Unavailable, match="stopping"):
        await running
    assert engine.cancelled == ["decode"]


async def _text(client: GatewayClient) -> str:
    return "".join([e.text async for e in client.chat(ask()) if isinstance(e, TextDelta)])


async def test_a_server_that_takes_calls_and_answers_none_is_not_used_in_silence(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[asyncio.StreamWriter] = []
    os.mkdir(runtime, 0o700)
    server = await asyncio.start_unix_server(lambda reader, writer: held.append(writer), socket_path())
    monkeypatch.setattr("edgecloud.app.client.ANSWER_S", 0.05)
    try:
        with pytest.raises(Silent, match=r"has not answered for 0\.05 s, so this runs without it"):
            await connect(Settings())
        gateway = await open_gateway(Settings())
        assert "has not answered" in gateway.aside
        await gateway.aclose()
    finally:
        for writer in held:
            writer.close()
        server.close()


async def test_a_server_whose_model_is_stuck_is_told_and_gone_without(
    engine: FakeEngine, server: SocketServer
) -> None:
    told = await asyncio.to_thread(CliRunner().invoke, serve, ["status"])
    assert told.exit_code == 0
    assert "ok\n0 running, 0 waiting." in told.output

    engine.ok = False
    told = await asyncio.to_thread(CliRunner().invoke, serve, ["status"])
    assert told.exit_code == 1
    assert "The fake engine is stuck" in told.output
    with pytest.raises(Stuck, match=r"is stuck \(The fake engine is stuck\), so this runs without it"):
        await connect(Settings())
