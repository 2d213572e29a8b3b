"""Learning from the user's own verdicts what the estimates miss, and proof that it helps before it is used.

Verdicts are split by chat: the corrections are fitted on four fifths and judged on the fifth they have not
seen, beside the installed version and beside `length`, the rule that needs no training. Only what beats both,
in a paired test over chats, may be installed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from edgecloud.types import Capabilities

from .learned import Corrections, LearnedQuality, corrected, inputs_of
from .learning.evidence import Evidence, weighed
from .learning.features import LENGTH
from .learning.heads import FOLDS, LENGTH_SLOPE, MIDDLING
from .learning.logistic import Doubles, fit, logit, sigmoid
from .learning.measures import auc, brier, ece, log_loss
from .world import EngineKind, EngineView

FEWEST = 40
"""Verdicts below which nothing is trained: the test could not tell a better version from luck."""
FEWEST_CHATS = 20
"""Chats that they have to be from: what one conversation proves, it proves of itself."""
FEWEST_EACH = 8
"""Verdicts below which an engine gets no correction of its own."""
SURE = 1.645
"""Standard errors by which the loss must fall: one chance in twenty that it is luck."""
VECTOR_PENALTY, FEATURE_PENALTY = 4.0, 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """How the new version does on verdicts it has not seen. Losses are in nats a verdict; `ahead_of_` are the
    differences in standard errors. `refusal` is the sentence that says why it is not installed, if it isn't.
    """

    num_verdicts: int
    num_chats: int
    loss: float
    loss_installed: float
    loss_length: float
    ahead_of_installed: float
    ahead_of_length: float
    ece: float
    brier: float
    auc: float
    refusal: str | None

    def as_json(self) -> dict[str, Any]:
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in dataclasses.asdict(self).items()
        }


class Trained(NamedTuple):
    """The corrections, fitted to all verdicts, and what was proven of them; None where there are too few."""

    weights: dict[tuple[str, str], Doubles]
    report: Report | None
    refusal: str | None


def train(own: Evidence, quality: LearnedQuality, seed: int = 0) -> Trained:
    """Corrections from verdicts, whatever `quality` knows of them, with a report. Pure."""
    num_chats = len(np.unique(own.groups))
    if len(own) < FEWEST or num_chats < FEWEST_CHATS:
        return Trained(
            {},
            None,
            f"There are {len(own)} verdicts in {num_chats} chats, and training needs {FEWEST} in "
            f"{FEWEST_CHATS}: rate more answers, or give a file of outcomes, where each prompt is a chat.",
        )
    before = _before(own, quality)
    weights = _fit(own, before, quality)
    if not weights:
        return Trained({}, None, f"No engine has {FEWEST_EACH} verdicts yet: rate more answers.")
    report = _judge(own, before, quality, seed)
    return Trained(weights, report, report.refusal)


def evaluate(own: Evidence, quality: LearnedQuality, seed: int = 0) -> Report | None:
    """The report that `train` would make; None where there are too few verdicts."""
    enough = len(own) >= FEWEST and len(np.unique(own.groups)) >= FEWEST_CHATS
    return _judge(own, _before(own, quality), quality, seed) if enough else None


# --------------------------------------------------------------------------------------------------- inside


def _judge(own: Evidence, before: Doubles, quality: LearnedQuality, seed: int) -> Report:
    chats, chat = np.unique(own.groups, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(chats)) % FOLDS)[chat]
    new, installed, length = np.empty((3, len(own)))
    for number in range(FOLDS):
        kept, aside = fold != number, fold == number
        train_rows, test_rows = own.take(kept), own.take(aside)
        fitted = Corrections(0, _fit(train_rows, before[kept], quality))
        new[aside] = _chances(test_rows, before[aside], train_rows, fitted, quality)
        installed[aside] = _chances(test_rows, before[aside], train_rows, quality.corrections, quality)
        length[aside] = _by_length(test_rows, train_rows)
    losses = [log_loss(each, own.scores) * own.weights for each in (new, installed, length)]
    ahead_of_installed = _ahead(losses[1] - losses[0], chat)
    ahead_of_length = _ahead(losses[2] - losses[0], chat)
    loss, loss_installed, loss_length = (float(each.sum() / own.weights.sum()) for each in losses)
    return Report(
        num_verdicts=len(own),
        num_chats=len(chats),
        loss=loss,
        loss_installed=loss_installed,
        loss_length=loss_length,
        ahead_of_installed=ahead_of_installed,
        ahead_of_length=ahead_of_length,
        ece=ece(new, own.scores),
        brier=brier(new, own.scores),
        auc=auc(new, own.scores),
        refusal=_refusal(loss, loss_installed, loss_length, ahead_of_installed, ahead_of_length),
    )


def _refusal(
    loss: float, installed: float, length: float, ahead: float, ahead_of_length: float
) -> str | None:
    if ahead_of_length < SURE:
        other, theirs = "prompt length alone", length
    elif ahead < SURE:
        other, theirs = "the installed version", installed
    else:
        return None
    return (
        f"The new version is not surely better than {other} on verdicts it has not seen (loss {loss:.3f} "
        f"against {theirs:.3f}), so it is not installed: more verdicts may tell."
    )


def _before(own: Evidence, quality: LearnedQuality) -> Doubles:
    """Log-odds from the public outcomes alone, for each verdict."""
    chances = quality.heads.predict(own.vectors, own.features)
    log_odds = logit(chances.p_ok)
    views = [
        _view(str(own.engines[row]), str(own.models[row]), str(own.kinds[row]), float(own.parameters[row]))
        for row in range(len(own))
    ]
    return np.array(
        [quality.base(view, log_odds[row], chances.trust[row])[0] for row, view in enumerate(views)]
    )


def _fit(own: Evidence, before: Doubles, quality: LearnedQuality) -> dict[tuple[str, str], Doubles]:
    """For each engine with enough verdicts, what the log-odds before miss."""
    inputs = inputs_of(quality.heads, own.vectors, own.features)
    width = own.vectors.shape[1]
    penalty = np.append(np.full(width, VECTOR_PENALTY), np.full(inputs.shape[1] - width, FEATURE_PENALTY))
    weights = {}
    for engine, model in sorted(set(zip(own.engines.tolist(), own.models.tolist(), strict=True))):
        mine = own.of(engine, model)
        if mine.sum() >= FEWEST_EACH:
            weights[engine, model] = fit(
                inputs[mine], own.scores[mine], penalty, weights=own.weights[mine], offset=before[mine]
            )
    return weights


def _chances(
    own: Evidence, before: Doubles, seen: Evidence, corrections: Corrections, quality: LearnedQuality
) -> Doubles:
    """As `LearnedQuality` gives them, with the verdicts `seen`."""
    inputs = inputs_of(quality.heads, own.vectors, own.features)
    found = np.empty(len(own))
    for row in range(len(own)):
        engine, model = str(own.engines[row]), str(own.models[row])
        correction = corrections.weights.get((engine, model))
        said = before[row]
        if correction is not None:
            said = said + corrected(inputs[row : row + 1], correction)[0]
        count, right = seen.near(engine, model, own.vectors[row], str(own.tenants[row]))
        found[row] = weighed(float(sigmoid(np.array(said))), count, right)
    return found


def _by_length(own: Evidence, seen: Evidence) -> Doubles:
    """`length`: each engine's share of right answers among those `seen`, less for longer questions."""
    found = np.empty(len(own))
    overall = float(np.average(seen.scores, weights=seen.weights))
    for engine, model in set(zip(own.engines.tolist(), own.models.tolist(), strict=True)):
        theirs, mine = seen.of(engine, model), own.of(engine, model)
        count = seen.weights[theirs].sum()
        share = (seen.weights[theirs] @ seen.scores[theirs] + overall) / (count + 1)
        lengths = own.features[mine, LENGTH].astype(np.float64)
        usual = float(seen.features[theirs, LENGTH].mean()) if theirs.any() else MIDDLING
        found[mine] = sigmoid(logit(np.array(share)) - LENGTH_SLOPE * (lengths - usual))
    return found


def _ahead(saved: Doubles, chat: np.ndarray[Any, Any]) -> float:
    """Mean of what was saved by chat, in its standard errors: verdicts of one chat are not independent."""
    by_chat = np.bincount(chat, saved)
    error = float(by_chat.std(ddof=1)) / math.sqrt(len(by_chat)) if len(by_chat) > 1 else 0.0
    return float(by_chat.mean()) / error if error > 0 else 0.0


def _view(engine: str, model: str, kind: str, size: float) -> EngineView:
    which: EngineKind = "local" if kind == "local" else "pool" if kind == "pool" else "hosted"
    return EngineView(
        engine,
        which,
        which == "local",
        model,
        Capabilities(context=1),
        parameters=None if math.isnan(size) else size,
    )
