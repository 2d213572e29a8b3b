"""One chat in a process of its own, its terminal a browser's websocket.

Textual's web driver frames what it writes: one letter (D: for the screen, M: JSON about it), four bytes of
length, then that many bytes. What it reads is framed the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

from aiohttp import WSMsgType, web

GREETING = b"__GANGLION__\n"
END_S = 5.0
WEB_DRIVER = "textual.drivers.web_driver:WebDriver"


class Bridge:
    """`run` returns when either side has left."""

    def __init__(self, socket: web.WebSocketResponse, command: Sequence[str]) -> None:
        self.socket = socket
        self.command = command
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, width: int, height: int) -> None:
        environment = {
            **os.environ,
            "TEXTUAL_DRIVER": WEB_DRIVER,
            "TEXTUAL_COLOR_SYSTEM": "truecolor",
            "COLUMNS": str(width),
            "ROWS": str(height),
        }
        process = self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )
        pumps = [asyncio.create_task(self._from_process()), asyncio.create_task(self._from_browser())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await self._end(process)

    async def _from_process(self) -> None:
        """What the chat draws."""
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout
        while await output.readline() != GREETING:
            if output.at_eof():
                return
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind = await output.readexactly(1)
                payload = await output.readexactly(int.from_bytes(await output.readexactly(4), "big"))
                if kind == b"D":
                    await self.socket.send_bytes(payload)
                elif kind == b"M" and json.loads(payload).get("type") == "exit":
                    return

    async def _from_browser(self) -> None:
        """What is typed there; anything that is not what our page sends is left out."""
        async for message in self.socket:
            if message.type != WSMsgType.TEXT:
                continue
            with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
                await self._act_on(message.json())

    async def _act_on(self, envelope: Any) -> None:
        match envelope:
            case ["stdin", str(text)]:
                await self._send(b"D", text.encode())
            case ["resize", {"width": int(width), "height": int(height)}]:
                await self._send_meta({"type": "resize", "width": width, "height": height})
            case ["ping", str(data)]:
                await self.socket.send_json(["pong", data])
            case ["focus" | "blur" as kind, *_]:
                await self._send_meta({"type": kind})

    async def _send(self, kind: bytes, payload: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(kind + len(payload).to_bytes(4, "big") + payload)
            await self._process.stdin.drain()

    async def _send_meta(self, meta: dict[str, Any]) -> None:
        await self._send(b"M", json.dumps(meta).encode())

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Let the chat keep what it has, then be sure."""
        await self._send_meta({"type": "quit"})
        try:
            async with asyncio.timeout(END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
