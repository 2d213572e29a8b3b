"""Who may come in: a browser on this machine that was given the address we printed, once.

The token in the address is taken at its first use, for a cookie that no script can read. A page of another
site can neither guess the one nor send the other.
"""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

COOKIE = "edgecloud_chat"


class Door:
    """Knows the token, the cookie, and the names that this server has."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._token: str | None = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)

    @property
    def address(self) -> str:
        """What is opened to get in. Only before it was."""
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    def take(self, token: str) -> str | None:
        """The cookie's value for the token, which is then spent; None for anything else."""
        if self._token is None or not secrets.compare_digest(token.encode(), self._token.encode()):
            return None
        self._token = None
        return self._cookie

    def knows(self, cookie: str | None) -> bool:
        """Whether this is the cookie that was given out."""
        is_given = self._token is None and cookie is not None
        return is_given and secrets.compare_digest((cookie or "").encode(), self._cookie.encode())

    def is_ours(self, host: str, origin: str | None) -> bool:
        """Whether a request was meant for us: our own name, and no other site's page behind it."""
        names = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        return host.lower() in names and (origin is None or urlsplit(origin).netloc.lower() in names)
