"""Caches, keys and answers that tests are built of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgecloud.cache.answers import AnswerCache
from edgecloud.cache.key import key_of
from edgecloud.cache.records import Answer, Embedded, Found, Hit, Key, Vector
from edgecloud.cache.same import shipped
from edgecloud.types import ChatRequest, ChoiceDone, Done, EngineEvent, Message, Start, TextDelta, Usage

WHO = "local:model"
SPACE = shipped().fingerprint


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def make_cache(path: Path, *, clock: Clock | None = None, audit: bool = False, **options: Any) -> AnswerCache:
    """A cache that draws no hit for an audit, or every one."""
    return AnswerCache(path, clock=clock or Clock(), draw=lambda: 0.0 if audit else 1.0, **options)


def ask(text: str, **fields: Any) -> ChatRequest:
    """A question by the user of this machine."""
    return ChatRequest(messages=(Message("user", text),), door="ask", **fields)


def make_key(text: str, **fields: Any) -> Key:
    return key_of(ask(text, **fields))


def make_events(text: str = "Light scatters.", reason: str = "stop") -> tuple[EngineEvent, ...]:
    """A complete answer, a word a piece."""
    words = [TextDelta(word) for word in text.split(" ")]
    return (
        Start("local", "model", 5),
        *(TextDelta(event.text if not place else " " + event.text) for place, event in enumerate(words)),
        ChoiceDone(0, reason),  # type: ignore[arg-type]
        Done(Usage(5, len(words))),
    )


def make_answer(text: str = "Light scatters.", **fields: Any) -> Answer:
    return Answer(make_events(text), WHO, **{"seconds": 2.0, **fields})


def make_vector(*near: float, seed: int = 0) -> Vector:
    """A unit vector of 384 dimensions; `near` is its cosine with that of the same seed without it."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=384)
    base /= np.linalg.norm(base)
    if near:
        aside = rng.normal(size=384)
        aside -= (aside @ base) * base
        aside /= np.linalg.norm(aside)
        base = near[0] * base + np.sqrt(1 - near[0] ** 2) * aside
    return base.astype(np.float32)


def at(*near: float, seed: int = 0, fingerprint: str = SPACE) -> Embedded:
    """A prompt's vector, as the shipped embedder's unless another is named."""
    return Embedded(make_vector(*near, seed=seed), fingerprint)


def keep(cache: AnswerCache, text: str, embedded: Embedded | None = None, **fields: Any) -> str:
    """Keep an answer to a prompt; its id."""
    entry_id, reason = cache.store(make_key(text, **fields), embedded or at(), make_answer())
    assert entry_id is not None, reason
    return entry_id


def look(
    cache: AnswerCache, key: Key, embedded: Embedded | None = None, answerers: Sequence[str] = (WHO,),
    *, fresh: bool = False,
) -> Found:  # fmt: skip
    """Both steps of a lookup."""
    recalled = cache.recall(key, answerers, fresh=fresh)
    if recalled.hit is not None or not recalled.is_near:
        return Found(recalled.hit)
    return cache.similar(key, embedded or at(), answerers, fresh=fresh)


def hit(cache: AnswerCache, text: str, embedded: Embedded | None = None, **fields: Any) -> Hit | None:
    """What is served for a prompt."""
    return look(cache, make_key(text, **fields), embedded).hit
