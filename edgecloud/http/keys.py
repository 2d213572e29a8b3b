"""The key at the door: `Authorization: Bearer` or `x-api-key`, compared in constant time with every key
there is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from pydantic import SecretStr

from edgecloud.errors import Unauthorized
from edgecloud.http.asgi import ASGIApp, Receive, Scope, Send
from edgecloud.http.call import call_of
from edgecloud.http.problem import send_problem

# A monitor that asks whether the process lives has no key, nor has a browser. Nothing but these.
LIVENESS = frozenset({"/", "/health", "/health/", "/health/live", "/health/ready", "/v1/health"})


def tenant_of(key: bytes) -> str:
    """A short name for a key that does not give it away."""
    return hashlib.blake2b(key, digest_size=6, person=b"tenant").hexdigest()


class KeyCheck:
    """401 without one of `keys`, but for liveness. No keys: everybody on this machine may come in."""

    def __init__(self, app: ASGIApp, *, keys: Iterable[SecretStr] = ()) -> None:
        self.app = app
        self._keys = [(key, tenant_of(key)) for key in (k.get_secret_value().encode() for k in keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys and scope["path"] not in LIVENESS:
            tenant = self._tenant(scope)
            if tenant is None:
                error = Unauthorized(
                    "A valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
                )
                return await send_problem(scope, receive, send, error)
            call_of(scope).tenant = tenant
        await self.app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        found = None
        for key, value in scope["headers"]:
            if key == b"x-api-key":
                candidate = value.strip()
            elif key == b"authorization" and value[:7].lower() == b"bearer ":
                candidate = value[7:].strip()
            else:
                continue
            for known, tenant in self._keys:
                if hmac.compare_digest(candidate, known):
                    found = tenant
        return found
