"""How good estimates are: RouteLLM's curve of quality over paid calls, and whether chances are what they say.

    APGR = area between the router's curve and the weak model's, as a share of the strong model's; random: 0.5
    CPT(x) = percent of calls to the strong model that recover x of the gap

(Ong et al., RouteLLM, 2024: eleven thresholds at quantiles of the score.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .logistic import Doubles

POINTS = 10


class Curve(NamedTuple):
    """Share of calls to the strong model (0..1, rising), and the mean score with them."""

    strong: Doubles
    score: Doubles


def curve(gain: Doubles, weak: Doubles, strong: Doubles) -> Curve:
    """What is scored when questions go to the strong model in the order of their expected `gain`."""
    # Ties would collapse thresholds, and their order must not depend on that of the rows.
    jitter = np.random.default_rng(0).normal(size=len(gain)) * 1e-9
    order = np.argsort(-(gain + jitter))
    counts = np.round(np.linspace(0, len(gain), POINTS + 1)).astype(int)
    won = np.concatenate([[0.0], np.cumsum((strong - weak)[order])])
    return Curve(counts / len(gain), weak.mean() + won[counts] / len(gain))


def apgr(gain: Doubles, weak: Doubles, strong: Doubles) -> float:
    """0 is the weak model, 1 the strong one, 0.5 a coin; the oracle may be above 1."""
    found = curve(gain, weak, strong)
    area = float(np.trapezoid(found.score, found.strong))
    return (area - float(weak.mean())) / float(strong.mean() - weak.mean())


def cpt(gain: Doubles, weak: Doubles, strong: Doubles, share: float) -> float:
    """Percent of calls to the strong model at the first crossing of `share` of the gap."""
    found = curve(gain, weak, strong)
    wanted = weak.mean() + share * (strong.mean() - weak.mean())
    best = np.maximum.accumulate(found.score)
    after = int(np.argmax(best >= wanted - 1e-12))
    if after == 0:
        return 0.0
    low, high = best[after - 1], best[after]
    part = (wanted - low) / (high - low)
    return 100 * float(found.strong[after - 1] + part * (found.strong[after] - found.strong[after - 1]))


def ece(chances: Doubles, outcomes: Doubles, bins: int = 10) -> float:
    """Expected calibration error, over bins of equal width."""
    place = np.minimum((chances * bins).astype(int), bins - 1)
    total = np.bincount(place, chances - outcomes, minlength=bins)
    return float(np.abs(total).sum() / len(chances))


def brier(chances: Doubles, outcomes: Doubles) -> float:
    return float(np.mean((chances - outcomes) ** 2))


def auc(scores: Doubles, right: Doubles) -> float:
    """The chance that a right answer scores above a wrong one; `right` is split at one half."""
    yes = right > 0.5
    if yes.all() or not yes.any():
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    num_yes = int(yes.sum())
    return float((ranks[yes].sum() - num_yes * (num_yes + 1) / 2) / (num_yes * (len(yes) - num_yes)))


def log_loss(chances: Doubles, outcomes: Doubles) -> Doubles:
    """Of each row."""
    inside = np.clip(chances, 1e-4, 1 - 1e-4)
    lost: Doubles = -(outcomes * np.log(inside) + (1 - outcomes) * np.log(1 - inside))
    return lost
