"""How a server ends: no new work, a while for what runs, then an honest error for the rest."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from edgecloud.errors import EdgeCloudError, Unavailable
from edgecloud.http.asgi import ASGIApp, Receive, Scope, Send
from edgecloud.http.keys import LIVENESS
from edgecloud.http.problem import ClientGone, send_problem

RETRY_AFTER_S = 5.0


class Drain:
    """The state of one server's end, and the answers that are being worked on."""

    def __init__(self) -> None:
        self.draining = False
        self.expired = False
        self.watches: set[Watch] = set()

    def begin(self, seconds: float) -> None:
        """Refuse new requests; those that still run in `seconds` are ended."""
        if not self.draining:
            self.draining = True
            asyncio.get_running_loop().call_later(seconds, self.expire)

    def expire(self) -> None:
        """End what still runs, now."""
        self.draining = self.expired = True
        for watch in list(self.watches):
            watch.interrupt(stopping())


def stopping() -> Unavailable:
    """What a request is told that meets a server on its way out."""
    return Unavailable("The server is stopping.", code="server_stopping", retry_after=RETRY_AFTER_S)


class DrainGate:
    """503 for new requests while the server drains; liveness still answers, and readiness says no by
    itself.
    """

    def __init__(self, app: ASGIApp, *, drain: Drain) -> None:
        self.app = app
        self.drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.drain.draining and scope["type"] == "http" and scope["path"] not in LIVENESS:
            return await send_problem(scope, receive, send, stopping())
        await self.app(scope, receive, send)


class Watch:
    """`async with Watch(...)`: the work inside is cancelled when its client hangs up or the drain runs out.

    Raises `ClientGone` or `Unavailable` at the end of the block then. To be entered once the body is read:
    it takes over `receive`. Must be entered and left by the same task.
    """

    def __init__(self, receive: Receive, drain: Drain) -> None:
        self._receive = receive
        self._drain = drain
        self._reason: Exception | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        if self._drain.expired:
            raise stopping()
        self._task = task
        self._cancelling = task.cancelling()
        self._listener = asyncio.create_task(self._listen())
        self._drain.watches.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drain.watches.discard(self)
        self._listener.cancel()
        # As asyncio.timeout does: only a cancellation that is ours becomes an error of ours.
        if (
            self._reason is not None
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise self._reason from None

    def interrupt(self, reason: EdgeCloudError | ClientGone) -> None:
        """Cancel the work, once."""
        if self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self.interrupt(ClientGone())
