"""Answers only to names of this machine, so that a web page cannot reach us by rebinding its own name to
loopback.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from edgecloud.errors import PermissionDenied
from edgecloud.http.asgi import ASGIApp, Receive, Scope, Send
from edgecloud.http.problem import send_problem

LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


def host_name(host: str) -> str:
    """The bare name of a Host header: no port, no brackets, no trailing dot, lower case.

    Raises `ValueError` when it is not a host with an optional port.
    """
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket:
            raise ValueError(host)
        name = str(ipaddress.IPv6Address(name))
    else:
        name, colon, port = host.partition(":")
        rest = colon + port
    if rest and not (rest[0] == ":" and rest[1:].isascii() and (rest[1:] == "" or rest[1:].isdecimal())):
        raise ValueError(host)
    return name.removesuffix(".")


def is_loopback(name: str) -> bool:
    """Whether a bare host name or address means this machine only."""
    if name in LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


class HostCheck:
    """403 for a Host that is neither loopback nor allowed.

    `allowed` are further names, `*` for any. A server bound beyond loopback (`bound`) also answers to any
    literal address: a name has to be allowed, because only names can be rebound.
    """

    def __init__(
        self, app: ASGIApp, *, allowed: Iterable[str] = (), bound: Iterable[str] = ("127.0.0.1",)
    ) -> None:
        self.app = app
        self._any = "*" in allowed
        self._names = {host_name(name) for name in allowed if name != "*"}
        bound_names = [host_name(f"[{name}]" if name.count(":") > 1 else name) for name in bound]
        self._names.update(name for name in bound_names if _address(name) is None)
        self._literals = any(not is_loopback(name) for name in bound_names)
        self._known: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._any:
            for key, value in scope["headers"]:
                if key == b"host" and value not in self._known:
                    if not self._allows(value.decode("latin-1")):
                        error = PermissionDenied(
                            "This Host is not served: use localhost, or add the name to server.allowed_hosts."
                        )
                        return await send_problem(scope, receive, send, error)
                    if len(self._known) < 64:
                        self._known.add(value)
        await self.app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        if not host:
            return True
        try:
            name = host_name(host)
        except ValueError:
            return False
        return name in self._names or is_loopback(name) or (self._literals and _address(name) is not None)
