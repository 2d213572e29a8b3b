"""The chat in a browser: nothing without the token, the whole chat with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from edgecloud.app.cli.chat import chat as chat_command
from edgecloud.app.cli.chat import tab_arguments
from edgecloud.app.tui.state.preferences import Preferences
from edgecloud.app.tui.web.door import COOKIE, Door
from edgecloud.app.tui.web.server import ChatServer

PATIENCE_S = 60


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    jar = aiohttp.CookieJar(unsafe=True)  # which keeps cookies of an address
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield session


def base(server: ChatServer) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_a_token_opens_once() -> None:
    door = Door(1234)
    token = door.address.partition("token=")[2]

    assert not door.knows("")
    assert door.take("wrong") is None
    cookie = door.take(token)
    assert cookie is not None
    assert door.take(token) is None
    assert door.knows(cookie)
    assert not door.knows(token)


@pytest.mark.parametrize("path", ["/", "/?token=wrong", "/ws", "/static/js/textual.js", "/nothing"])
async def test_without_the_token_nothing_is_shown(
    server: ChatServer, browser: aiohttp.ClientSession, path: str
) -> None:
    async with browser.get(base(server) + path) as response:
        text = await response.text()

    assert response.status == 403
    assert "terminal" not in text


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Host", "evil.example"),
        ("Origin", "http://evil.example"),
        ("Origin", "http://127.0.0.1.evil.example"),
    ],
)
async def test_another_name_or_page_gets_nothing_even_with_the_token(
    server: ChatServer, browser: aiohttp.ClientSession, header: str, value: str
) -> None:
    async with browser.get(server.door.address, headers={header: value}) as response:
        assert response.status == 403
    async with browser.get(server.door.address) as response:
        assert response.status == 200, "the token was not spent by that"


async def test_with_it_one_asks_and_reads_the_answer_and_its_receipt(
    server: ChatServer, browser: aiohttp.ClientSession
) -> None:
    async with browser.get(server.door.address) as response:
        page = await response.text()
        assert str(response.url) == base(server) + "/", "the token is gone from the address"
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert "http" not in page.replace("http-equiv", ""), "nothing comes from elsewhere"
    cookie = next(morsel for morsel in browser.cookie_jar if morsel.key == COOKIE)
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")

    screen = b""
    address = f"ws://127.0.0.1:{server.port}/ws?width=100&height=30"
    async with browser.ws_connect(address, origin=base(server)) as socket:

        async def see(text: bytes) -> None:
            nonlocal screen
            async with asyncio.timeout(PATIENCE_S):
                while text not in screen:
                    message = await socket.receive()
                    assert message.type is aiohttp.WSMsgType.BINARY
                    screen += message.data

        await see(b"Ask anything")
        await socket.send_str("not what our page sends")
        await socket.send_json(["stdin", "hi\r"])
        await see(b"first word")
        assert b"Hello" in screen
        await socket.send_json(["stdin", "\x11"])
        async with asyncio.timeout(PATIENCE_S):
            while not socket.closed:
                await socket.receive()


@pytest.mark.slow
async def test_a_tab_that_is_closed_ends_its_chat_and_keeps_it(
    server: ChatServer, browser: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with browser.get(server.door.address):
        pass
    async with browser.ws_connect(base(server) + "/ws", origin=base(server)) as socket:
        seen = b""
        while b"Ask anything" not in seen:
            seen += (await socket.receive()).data
        await socket.send_json(["stdin", "half a thought"])
        while not re.search(rb"about \d+ tokens", seen):
            seen += (await socket.receive()).data

    async with asyncio.timeout(PATIENCE_S):
        while server._chats:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (tmp_path / "data" / "draft.md").read_text() == "half a thought"


@pytest.mark.parametrize("chat_id", [None, "last", "3f2a"])
def test_what_is_said_on_the_command_line_holds_for_every_tab(chat_id: str | None) -> None:
    chosen = Preferences(system="be brief", model="qwen", mode="cheap", private=True)
    group, *arguments = tab_arguments(chosen, chat_id, "--help me", "light", offline=True)
    said = chat_command.make_context("chat", arguments[1:]).params

    assert (group, arguments[0]) == ("--offline", "chat")
    assert (said["system"], said["model"], said["mode"], said["private"]) == (
        "be brief",
        "qwen",
        "cheap",
        True,
    )
    assert (said["theme"], said["prompt"]) == ("light", ("--help me",))
    assert (said["continues"], said["chat_id"]) == (chat_id == "last", None if chat_id == "last" else chat_id)
