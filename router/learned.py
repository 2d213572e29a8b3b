"""Quality learnt from outcomes: public ones that come with the product, corrected by the user's own.

    heads of known models -> who speaks for the engine -> trained correction -> verdicts near the question

Without a vector, with one of another embedder, or in a language that the rows are not in, it is the prior.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgecloud.errors import ModelLoadError

from .decision import Estimate, Neighbour
from .facts import Facts
from .learning.archive import from_arrays
from .learning.bags import bags_of
from .learning.evidence import NOTHING, RESERVE, Evidence, weighed
from .learning.features import Floats, features
from .learning.heads import Heads
from .learning.logistic import FARTHEST, Doubles, logit
from .learning.speakers import Voice, voice_of
from .priors import PriorQuality
from .world import EngineView

SHIPPED = Path(__file__).parent / "data" / "outcomes.npz"
NEIGHBOURS = 3
# A speaker whose rows know nothing of the question says this much beside those that do.
_LEAST_TRUST = 0.05
# Lengths of vectors beside features, for corrections.
VECTOR_SCALE = 0.6
# Half-width of an interval that grows, in log-odds, where the rows are not trusted.
_IN_THE_DARK = 0.8


class Corrections(NamedTuple):
    """What training found the estimates to miss, in log-odds: weights of the vector, the features and a bias
    (width,) by engine and model.
    """

    version: int
    weights: Mapping[tuple[str, str], Doubles]


UNTRAINED = Corrections(0, {})


@dataclasses.dataclass(frozen=True)
class LearnedQuality:
    """`Quality` from heads for vectors of the embedder with this `fingerprint`."""

    heads: Heads
    fingerprint: str
    made: str = ""
    evidence: Evidence = NOTHING
    corrections: Corrections = UNTRAINED

    @property
    def version(self) -> str:
        parts = [f"outcomes-{self.made}"]
        if self.corrections.version:
            parts.append(f"trained-{self.corrections.version}")
        if len(self.evidence):
            parts.append(f"verdicts-{len(self.evidence)}")
        return "+".join(parts)

    def predict(self, facts: Facts, engines: Sequence[EngineView]) -> Mapping[str, Estimate]:
        if not self.understands(facts):
            return PriorQuality().predict(facts, engines)
        vector, row = _vector(facts), features(facts.structure)
        bags = bags_of([facts.words]) if facts.words else None
        chances = self.heads.predict(vector[None], row[None], bags)
        log_odds, trust = logit(chances.p_ok[0]), chances.trust[0]
        tenant = facts.tenant or ""
        return {view.name: self._estimate(view, log_odds, trust, vector, row, tenant) for view in engines}

    def neighbours(self, facts: Facts) -> tuple[Neighbour, ...]:
        if not self.understands(facts):
            return ()
        vector, rows = _vector(facts), self.heads.rows
        known = [
            Neighbour(
                str(rows.ids[index]),
                similar,
                {
                    model: float(score)
                    for model, score in zip(rows.models, rows.scores[index], strict=True)
                    if not math.isnan(score)
                },
            )
            for index, similar in self.heads.nearest(vector, features(facts.structure), NEIGHBOURS)
        ]
        own = self.evidence.take(self.evidence.tenants == (facts.tenant or ""))
        if len(own):
            similar = own.vectors @ vector
            known += [
                Neighbour(str(own.ids[at]), float(similar[at]), {str(own.engines[at]): float(own.scores[at])})
                for at in np.argsort(-similar)[:NEIGHBOURS]
            ]
        return tuple(sorted(known, key=lambda one: -one.similarity)[:NEIGHBOURS])

    def understands(self, facts: Facts) -> bool:
        """Whether the request has a vector that the rows can be compared with."""
        return (
            facts.vector is not None
            and facts.fingerprint == self.fingerprint
            and facts.structure.language == "en"
        )

    def base(self, engine: EngineView, log_odds: Doubles, trust: Doubles) -> tuple[float, float, Voice]:
        """Of one engine, before anything of the user's own: log-odds, trust, and who said so; from those of
        all heads.
        """
        voice = voice_of(engine, self.heads.models)
        columns = [speaker.column for speaker in voice.speakers]
        weights = np.array([speaker.weight for speaker in voice.speakers]) * (trust[columns] + _LEAST_TRUST)
        shifts = np.array([speaker.shift for speaker in voice.speakers])
        weights /= weights.sum()
        return float(weights @ (log_odds[columns] + shifts)), float(weights @ trust[columns]), voice

    # ------------------------------------------------------------------------------------------------- inside

    def _estimate(
        self, view: EngineView, log_odds: Doubles, trust: Doubles, vector: Floats, row: Floats, tenant: str
    ) -> Estimate:
        said, trusted, voice = self.base(view, log_odds, trust)
        correction = self.corrections.weights.get((view.name, view.model))
        if correction is not None:
            said += float(corrected(inputs_of(self.heads, vector[None], row[None]), correction)[0])
        count, right = 0.0, 0.0
        if len(self.evidence):
            count, right = self.evidence.near(view.name, view.model, vector, tenant)
        mean = weighed(_chance(said), count, right)
        doubt = (voice.doubt + _IN_THE_DARK * (1 - trusted)) * math.sqrt(RESERVE / (RESERVE + count))
        middle = float(logit(np.array(mean)))
        source = voice.source
        if trusted < 0.5:
            source += ", far from all of them"
        if count >= 0.5:
            source += ", your verdicts nearby"
        return Estimate(mean, _chance(middle - doubt), _chance(middle + doubt), source)


def inputs_of(heads: Heads, vectors: Floats, rows: Floats) -> Floats:
    """What corrections are linear in: scaled vectors and features, (n, dimensions + features)."""
    return np.hstack([vectors * VECTOR_SCALE, heads.scaled(rows)])


def corrected(inputs: Floats, correction: Doubles) -> Doubles:
    """What a correction adds to the log-odds of inputs (n, width); nothing if it was trained on others."""
    if len(correction) != inputs.shape[1] + 1:
        return np.zeros(len(inputs))
    added: Doubles = inputs @ correction[:-1] + correction[-1]
    return added


def load_shipped(path: Path = SHIPPED) -> LearnedQuality:
    """What comes with the product. Raises `ModelLoadError` where the file is damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays: dict[str, Any] = dict(archive)
        made = hashlib.sha256()
        for name in ("kernel0", "curves"):  # either changes what is estimated
            made.update(np.ascontiguousarray(arrays[name]).tobytes())
        return LearnedQuality(from_arrays(arrays), str(arrays["fingerprint"]), made.hexdigest()[:8])
    except Exception as error:  # a zip, its arrays and their shapes can be wrong in every way
        raise ModelLoadError(
            f"The known outcomes that quality is estimated from can't be read ({type(error).__name__}): "
            "reinstall edgecloud; until then the sizes of models decide."
        ) from None


def _chance(log_odds: float) -> float:
    """As `sigmoid`, of one number: an array for each would take longer than all else."""
    return 1.0 / (1.0 + math.exp(-min(max(log_odds, -FARTHEST), FARTHEST)))


def _vector(facts: Facts) -> Floats:
    return np.array(facts.vector, np.float32)
