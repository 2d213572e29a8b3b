"""Rows, verdicts and heads that are small enough to be fitted in a test: two clusters of questions, eight
dimensions, a model that is right in one cluster and a model that is right in both.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from edgecloud.router.facts import Facts, Structure
from edgecloud.router.learned import LearnedQuality
from edgecloud.router.learning.evidence import Evidence
from edgecloud.router.learning.features import NAMES, Floats, features
from edgecloud.router.learning.heads import Heads, fit_heads
from edgecloud.router.learning.rows import Rows, unit

DIMENSIONS = 8
SMALL, LARGE = "small-8b", "large-70b"
EASY = np.eye(DIMENSIONS, dtype=np.float32)[0]
HARD = np.eye(DIMENSIONS, dtype=np.float32)[1]
ELSEWHERE = np.eye(DIMENSIONS, dtype=np.float32)[5]
FINGERPRINT = "eight"


def make_rows(number: int = 3000, seed: int = 0) -> Rows:
    """Even rows are easy (small 0.9, large 0.9), odd ones hard (small 0.1, large 0.8)."""
    source = np.random.default_rng(seed)
    hard = np.arange(number) % 2 == 1
    around = np.where(hard[:, None], HARD, EASY) + source.normal(0, 0.15, (number, DIMENSIONS))
    chances = np.stack([np.where(hard, 0.1, 0.9), np.where(hard, 0.8, 0.9)], 1)
    words = source.integers(10, 60, number)
    structure = [features(Structure(num_chars=6 * int(each), num_words=int(each))) for each in words]
    return Rows(
        np.array([f"row/{index}" for index in range(number)]),
        np.where(hard, "hard", "easy"),
        unit(around.astype(np.float32)),
        np.stack(structure),
        (source.random((number, 2)) < chances).astype(float),
        (SMALL, LARGE),
    )


@cache
def fitted() -> Heads:
    return fit_heads(make_rows())


def make_quality(**changes: Any) -> LearnedQuality:
    return LearnedQuality(**{"heads": fitted(), "fingerprint": FINGERPRINT, "made": "test", **changes})


def facts_at(vector: Floats, *, chars: int = 200, **changes: Any) -> Facts:
    structure = Structure(num_chars=chars, num_words=chars // 6)
    return Facts(
        **{
            "request_id": "req-1",
            "estimated_tokens": 50,
            "structure": structure,
            "vector": tuple(vector.tolist()),
            "fingerprint": FINGERPRINT,
            **changes,
        }
    )


def make_evidence(
    vectors: Floats,
    scores: Any,
    *,
    engine: str = "laptop",
    model: str = SMALL,
    kind: str = "local",
    groups: Any = None,
    chars: Any = 200,
    **changes: Any,
) -> Evidence:
    number = len(vectors)
    sizes = np.broadcast_to(chars, number)
    structure = [features(Structure(num_chars=int(each), num_words=int(each) // 6)) for each in sizes]
    return Evidence(
        **{
            "ids": np.array([f"req-{index}" for index in range(number)]),
            "groups": np.array([f"chat-{index}" for index in range(number)] if groups is None else groups),
            "tenants": np.full(number, ""),
            "engines": np.full(number, engine),
            "models": np.full(number, model),
            "kinds": np.full(number, kind),
            "parameters": np.full(number, np.nan),
            "vectors": vectors.astype(np.float32),
            "features": np.stack(structure) if number else np.empty((0, len(NAMES)), np.float32),
            "scores": np.broadcast_to(np.array(scores, float), number).copy(),
            "weights": np.ones(number),
            **changes,
        }
    )
