"""A server that speaks as much of the hub's API as a pull needs, and can misbehave."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class HubServer:
    """Repositories of files. After `cut_after` bytes of one the connection breaks, the first `cuts` times."""

    files: dict[str, dict[str, bytes]]
    cut_after: int | None = None
    cuts: int = 0
    ignores_ranges: bool = False
    gated: set[str] = field(default_factory=set)
    corrupt: bool = False
    token: str | None = None
    url: str = ""
    requests: list[str] = field(default_factory=list)
    num_bytes_sent: int = 0

    def __enter__(self) -> HubServer:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/api/models/{owner}/{repo}/tree/main", self._tree)
        app.router.add_get("/{owner}/{repo}/resolve/main/{path:.+}", self._resolve)
        app.router.add_get("/cdn/{owner}/{repo}/{path:.+}", self._content)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    def _files(self, request: web.Request) -> dict[str, bytes]:
        repo = f"{request.match_info['owner']}/{request.match_info['repo']}"
        if repo in self.gated:
            raise web.HTTPForbidden(headers={"X-Error-Code": "GatedRepo"})
        if repo not in self.files:
            raise web.HTTPNotFound(headers={"X-Error-Code": "RepoNotFound"})
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized(headers={"X-Error-Code": "RepoNotFound"})
        return self.files[repo]

    async def _tree(self, request: web.Request) -> web.Response:
        self.requests.append("tree")
        entries = [
            {
                "type": "file",
                "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
                "size": len(content),
                "path": path,
            }
            | (
                {
                    "lfs": {
                        "oid": hashlib.sha256(content).hexdigest(),
                        "size": len(content),
                        "pointerSize": 134,
                    }
                }
                if len(content) > 100
                else {}
            )
            for path, content in self._files(request).items()
        ]
        return web.json_response(entries)

    async def _resolve(self, request: web.Request) -> web.Response:
        self._files(request)
        location = (
            f"/cdn/{request.match_info['owner']}/{request.match_info['repo']}/{request.match_info['path']}"
        )
        raise web.HTTPFound(location)

    async def _content(self, request: web.Request) -> web.StreamResponse:
        content = self.files[f"{request.match_info['owner']}/{request.match_info['repo']}"][
            request.match_info["path"]
        ]
        if self.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        asked = request.headers.get("Range")
        self.requests.append(asked or "all")
        start = (
            0 if asked is None or self.ignores_ranges else int(asked.removeprefix("bytes=").removesuffix("-"))
        )
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(content) - start
        await response.prepare(request)
        body = content[start:]
        if self.cuts > 0 and self.cut_after is not None:
            self.cuts -= 1
            body = body[: self.cut_after]
        self.num_bytes_sent += len(body)  # before the client has them and looks
        await response.write(body)
        if len(body) < len(content) - start and request.transport is not None:
            await asyncio.sleep(0.05)
            request.transport.close()
        return response
