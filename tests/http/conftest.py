from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from edgecloud.engine import Engine
from tests.support.live import Live, live_server

Serve = Callable[..., Live]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers over scripted engines; all are drained at the end of the test."""
    with contextlib.ExitStack() as running:

        def start(*engines: Engine, **server: object) -> Live:
            return running.enter_context(live_server(*engines, **server))

        yield start
