"""A pool without a model: the real engine and server over a fake runner whose tokens are bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from edgecloud.http.drain import Drain
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.engine import PoolEngine
from edgecloud.pool.model_text import ModelText
from edgecloud.pool.server import create_app
from edgecloud.settings import ServerSettings
from edgecloud.templates import ChatTemplate

from .fake_runner import VOCABULARY, FakeRunner, NextToken
from .live import Live, live_app

END = 256
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"


class ByteVocabulary:
    """A token is a byte; 256 ends an answer."""

    n_vocab = VOCABULARY
    bos = -1
    adds_bos = False
    eog_ids = frozenset({END})

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        return bytes([token_id]) if token_id < END else b""

    def detokenize(self, ids: Sequence[int], *, special: bool = True) -> bytes:
        return b"".join(self.token_bytes(token) for token in ids)


def scripted(text: bytes, *, end: bool = True) -> NextToken:
    """Every prompt that ends in `|` or `a:` is answered with `text`, then with the end (or text again)."""

    def next_token(context: list[tuple[int, int]], choice: int) -> int:
        said = bytes(token for _, token in context if token < END)
        start = max(said.rfind(b"|") + 1, said.rfind(b"\na:") + 3)
        num_drawn = len(context) - start
        return text[num_drawn % len(text)] if num_drawn < len(text) or not end else END

    return next_token


def make_pool(
    *,
    num_blocks: int = 8,
    block_size: int = 4,
    num_host_blocks: int = 0,
    policy: Any = "fcfs",
    watchdog_s: float = 30.0,
    slo: Any = None,
    defaults: Any = None,
    runner: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    **config: Any,
) -> tuple[PoolEngine, FakeRunner]:
    """A small pool and the runner below it; `runner` are arguments of the fake, `facts` what it says of
    itself.
    """
    fake = FakeRunner(num_blocks, block_size, num_host_blocks, **(runner or {}))
    fake.facts = replace(fake.facts, **(facts or {}))
    sizes: dict[str, Any] = {"context": 64, "token_budget": 32, "max_running": 4, **config}
    text = ModelText("fake", ByteVocabulary(), ChatTemplate(TEMPLATE))
    engine = PoolEngine(
        fake,
        text,
        PoolConfig(num_blocks, block_size, num_host_blocks, **sizes),
        policy=policy,
        watchdog_s=watchdog_s,
        slo=slo,
        defaults=defaults,
    )
    return engine, fake


def remembered(engine: PoolEngine) -> list[object]:
    """What an idle engine still holds of requests that are over: nothing, or it is a leak."""
    stepper = engine.loop._stepper
    kept = (
        stepper._tickets,
        stepper._ids,
        stepper._finders,
        stepper._last_token,
        stepper.outbox._messages,
        stepper.scheduler.requests,
    )
    return [item for memory in kept for item in memory]


@contextlib.contextmanager
def live_pool(engine: PoolEngine, **server: object) -> Iterator[Live]:
    """The pool's own server over real sockets, drained and closed at the end."""
    settings = ServerSettings.model_validate({"drain_s": 0.0, **server})
    drain = Drain()
    app = create_app(engine, settings, drain=drain)
    with live_app(app, drain, settings.drain_s, engine.aclose) as live:
        yield live
