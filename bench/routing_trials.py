"""Questions with known outcomes, split into those that are learnt from and those that are judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from fit_router import shipped_rows

from edgecloud.router.learning.heads import Chances, fit_heads
from edgecloud.router.learning.rows import Rows

ROUTELLM = ("mixtral-8x7b-instruct", "gpt-4-1106-preview")
LLMROUTER = ("gemma-2-9b-it", "llama-3.1-nemotron-51b-instruct")
SEEDS = range(5)
FOLDS = 5


class Trial(NamedTuple):
    """Test rows with the chances that rows apart from them gave."""

    rows: Rows
    chances: Chances


def rows_of(name: str, pair: tuple[str, str]) -> Rows:
    """The questions of one set that both models have scores for."""
    rows = shipped_rows()
    return rows.take(np.char.startswith(rows.ids, f"{name}/")).of(*pair)


def tried(train: Rows, test: Rows) -> Trial:
    return Trial(test, fit_heads(train).predict(test.vectors, test.features, test.bags))


def splits(rows: Rows, labels: int) -> Iterator[Trial]:
    """`labels` random rows to learn from, all others to be judged by."""
    for seed in SEEDS:
        order = np.random.default_rng(seed).permutation(len(rows))
        yield tried(rows.take(order[:labels]), rows.take(order[labels:]))


def crossed(rows: Rows) -> Iterator[Trial]:
    """Every row judged once, by heads that were fitted without its fold."""
    fold = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    for number in range(FOLDS):
        yield tried(rows.take(fold != number), rows.take(fold == number))


def unseen(rows: Rows) -> Iterator[Trial]:
    """Half of the groups to learn from, the other half to be judged by."""
    groups = np.unique(rows.groups)
    for seed in SEEDS:
        kept = np.isin(rows.groups, np.random.default_rng(seed).permutation(groups)[: len(groups) // 2])
        yield tried(rows.take(kept), rows.take(~kept))
