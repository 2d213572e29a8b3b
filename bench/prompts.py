"""The public prompt sets of `bench/data/semcache`, and their vectors by the starter embedder.

Embedding all of them takes two minutes, so vectors are kept in `bench/results/`, by text.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgecloud.local_engine.embedder import open_embedder
from edgecloud.models import resolve
from edgecloud.settings import Settings

DATA = Path(__file__).parent / "data" / "semcache"
RESULTS = Path(__file__).parent / "results"
BATCH = 256


class Pair(NamedTuple):
    """Two prompts, and whether one answer serves both. `kind` is the test that a set has it under."""

    one: str
    other: str
    same: bool
    kind: str = ""


class Prompt(NamedTuple):
    """A prompt of a stream; prompts of one intent have one answer. Out of scope is `oos`: an answer each."""

    text: str
    intent: str


def stream(name: str, seed: int | None = None, size: int | None = None) -> list[Prompt]:
    """The prompts of `banking77` or `clinc150`, shuffled by a seed."""
    file = {"banking77": "banking77_train", "clinc150": "clinc150"}[name]
    prompts = [Prompt(row["text"], row["intent"]) for row in _rows(file)]
    if seed is not None:
        prompts = [prompts[index] for index in np.random.default_rng(seed).permutation(len(prompts))]
    return prompts[:size]


def checklist() -> list[Pair]:
    """CheckList's question pairs: those that must not be taken for each other, and those that may."""
    return [
        Pair(row["q1"], row["q2"], bool(row["label"]), f"{row['cap']}: {row['test']}")
        for row in _rows("checklist_nearmiss")
    ]


def gptcache() -> list[Pair]:
    """The 999 pairs of GPTCache's own published table: all of them the same."""
    return [Pair(row["q1"], row["q2"], True) for row in _rows("gptcache_mock_999")]


class Vectors:
    """Unit vectors by text."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.fingerprint, self._rows, self._vectors = _embedded(list(dict.fromkeys(texts)))

    def __getitem__(self, text: str) -> NDArray[np.float32]:
        return self._vectors[self._rows[text]]

    def of(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """One row a text."""
        return self._vectors[[self._rows[text] for text in texts]]


def everything() -> list[str]:
    """Every text of every set."""
    pairs = [*checklist(), *gptcache()]
    prompts = [*stream("banking77"), *stream("clinc150")]
    return [*(prompt.text for prompt in prompts), *(text for pair in pairs for text in pair[:2])]


def _rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _embedded(texts: list[str]) -> tuple[str, dict[str, int], NDArray[np.float32]]:
    return asyncio.run(_embed(texts))


async def _embed(texts: list[str]) -> tuple[str, dict[str, int], NDArray[np.float32]]:
    settings = Settings()
    embedder = open_embedder(resolve(settings.embedder, settings), settings)
    try:
        path = RESULTS / f"vectors-{embedder.fingerprint[:12]}.npz"
        known: dict[str, NDArray[np.float32]] = {}
        if path.exists():
            with np.load(path, allow_pickle=False) as kept:
                known = dict(zip(kept["texts"].tolist(), kept["vectors"].astype(np.float32), strict=True))
        missing = sorted((text for text in texts if text not in known), key=len)
        for at in range(0, len(missing), BATCH):
            batch = missing[at : at + BATCH]
            known |= zip(batch, np.array((await embedder.embed(batch)).vectors, np.float32), strict=True)
        if missing:
            RESULTS.mkdir(exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.npz")
            np.savez(partial, texts=np.array(list(known)), vectors=np.array(list(known.values()), np.float32))
            partial.replace(path)
        rows = {text: row for row, text in enumerate(texts)}
        return embedder.fingerprint, rows, np.array([known[text] for text in texts], np.float32)
    finally:
        await embedder.aclose()
