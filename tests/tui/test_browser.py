"""The chat in a real browser: Chromium, driven through its own protocol."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from edgecloud.app.tui.web.server import ChatServer

from .chatting import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


class Tab:
    """A tab of Chromium, its console read along."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.complaints: list[str] = []
        self._number = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        await self.socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self.socket.receive_json()
            if message.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(message))
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.complaints.append(message["params"]["entry"]["text"])
            if message.get("id") == self._number:
                result: dict[str, Any] = message["result"]
                return result

    async def value(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"].get("value")

    async def enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    async def picture(self) -> bytes:
        return base64.b64decode((await self.call("Page.captureScreenshot"))["data"])


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    profile = tmp_path / "profile"
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
    browser = await asyncio.create_subprocess_exec(
        str(CHROMIUM),
        *options,
        "--remote-allow-origins=*",
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        await until(port_file.exists)
        port = port_file.read_text().split()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as response:
                page = next(each for each in await response.json() if each["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                opened = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await opened.call(f"{domain}.enable")
                yield opened
    finally:
        browser.terminate()
        await browser.wait()


async def test_a_browser_sees_nothing_without_the_token_and_the_chat_with_it(
    server: ChatServer, tab: Tab, tmp_path: Path
) -> None:
    await tab.call("Page.navigate", url=f"http://127.0.0.1:{server.port}/")
    await asyncio.sleep(1)
    assert "it opens once" in await tab.value("document.body.innerText")
    assert await tab.value("document.querySelectorAll('script').length") == 0

    tab.complaints.clear()
    await tab.call("Page.navigate", url=server.door.address)
    async with asyncio.timeout(60):
        while not await tab.value("document.activeElement.className.includes('xterm')"):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert "token" not in await tab.value("location.href")
    await asyncio.sleep(2)
    empty = await tab.picture()
    await tab.call("Input.insertText", text="hello there")
    await tab.enter()
    database = tmp_path / "data" / "edgecloud.db"
    await until(database.exists)
    await asyncio.sleep(3)

    answered = await tab.picture()
    (tmp_path / "answered.png").write_bytes(answered)  # to be looked at
    assert len(answered) != len(empty)
    assert tab.complaints == []
    from edgecloud.app.history import History

    (chat,) = History(database).list()
    assert (chat.title, chat.status) == ("hello there", "complete")
