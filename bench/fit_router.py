"""Makes `router/data/outcomes.npz`, what the router knows before its user has said anything.

    python bench/fit_router.py SET.jsonl.gz ...    embeds the questions of sets, fits heads to outcomes
    python bench/fit_router.py --refit             fits again to the rows that are in the file

A line of a set is {"id", "group", "prompt", "scores": {model: 0.0 to 1.0}}. Only vectors, structure and
scores ship of it: no text of a question or an answer. Hashes of its words, which fitting again needs, stay in
`bench/data/routing/words.npz`. The rows are from RouteLLM and LLMRouter (see NOTICE).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgecloud.local_engine.embedder import open_embedder
from edgecloud.models import resolve
from edgecloud.router.learned import SHIPPED
from edgecloud.router.learning.archive import to_arrays
from edgecloud.router.learning.bags import Bags, bags_of
from edgecloud.router.learning.features import features
from edgecloud.router.learning.heads import fit_heads
from edgecloud.router.learning.rows import Rows, joined, unit, unpack
from edgecloud.router.structure import gist, measure
from edgecloud.router.wording import wording
from edgecloud.settings import Settings

TARGET = Path(__file__).parents[1] / "router" / "data" / SHIPPED.name
WORDS = Path(__file__).parent / "data" / "routing" / "words.npz"
BATCH = 64


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a set."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


async def embed(texts: list[str]) -> tuple[np.ndarray[Any, Any], str]:
    """Unit vectors (n, dimensions) by the starter embedder, and its fingerprint."""
    settings = Settings()
    embedder = open_embedder(resolve(settings.embedder, settings), settings)
    try:
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = np.empty((len(texts), embedder.dimensions), np.float32)
        for at in range(0, len(order), BATCH):
            some = order[at : at + BATCH]
            vectors[some] = (await embedder.embed([texts[index] for index in some])).vectors
        return vectors, embedder.fingerprint
    finally:
        await embedder.aclose()


def rows_of(lines: list[dict[str, Any]], vectors: np.ndarray[Any, Any]) -> Rows:
    """A set as arrays."""
    models = tuple(dict.fromkeys(model for line in lines for model in line["scores"]))
    return Rows(
        np.array([line["id"] for line in lines]),
        np.array([line["group"] for line in lines]),
        unit(vectors),
        np.stack([features(measure(line["prompt"])) for line in lines]),
        np.array([[line["scores"].get(model, np.nan) for model in models] for line in lines], float),
        models,
        bags_of([wording(gist(line["prompt"])) for line in lines]),
    )


def shipped_rows() -> Rows:
    """The rows of the shipped file, whatever heads it was made with, and their words."""
    with np.load(SHIPPED, allow_pickle=False) as archive:
        rows = unpack(archive)
    with np.load(WORDS, allow_pickle=False) as kept:
        return dataclasses.replace(rows, bags=Bags(kept["buckets"], kept["starts"]))


def shipped_fingerprint() -> str:
    """That of the embedder whose vectors the shipped rows are."""
    with np.load(SHIPPED, allow_pickle=False) as archive:
        return str(archive["fingerprint"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="*", type=Path)
    parser.add_argument("--refit", action="store_true")
    parser.add_argument("--out", type=Path, default=TARGET)
    options = parser.parse_args()
    if options.refit == bool(options.sets):
        parser.error("name the sets, or say --refit")
    began = time.monotonic()
    if options.refit:
        rows, fingerprint = shipped_rows(), shipped_fingerprint()
    else:
        parts = [read(path) for path in options.sets]
        lines = [line for part in parts for line in part]
        vectors, fingerprint = asyncio.run(embed([gist(line["prompt"]) for line in lines]))
        ends = np.cumsum([len(part) for part in parts])[:-1]
        rows = joined([rows_of(*pair) for pair in zip(parts, np.split(vectors, ends), strict=True)])
    heads = fit_heads(rows)
    np.savez_compressed(options.out, fingerprint=np.array(fingerprint), **to_arrays(heads))
    if rows.bags is not None:
        np.savez_compressed(WORDS, buckets=rows.bags.buckets, starts=rows.bags.starts)
    size = options.out.stat().st_size / 1e6
    print(f"{len(rows)} rows, {len(rows.models)} models, {size:.1f} MB, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
