"""A machine without a network, and a pool whose steps wait."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from .server_builders import Gate


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records each name looked up and each address connected to that is not loopback."""
    seen: list[str] = []

    def look_up(host: str, *_: Any, **__: Any) -> Any:
        seen.append(f"lookup {host}")
        raise socket.gaierror("no network in this test")

    def connect(self: socket.socket, address: Any) -> Any:
        seen.append(f"connect {address}")
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket.socket, "connect", connect)
    return seen


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Open at the end, so that no test leaves a thread behind."""
    gate = Gate()
    yield gate
    gate.open()
