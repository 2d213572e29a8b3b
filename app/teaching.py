"""`edgecloud route train` and `eval`: from kept verdicts and labelled files to a version that is proven."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgecloud.errors import BadRequest, EdgeCloudError
from edgecloud.settings import Settings

from ..router.learned import LearnedQuality, load_shipped
from ..router.learning.features import features
from ..router.outcomes import Answered, Outcomes
from ..router.structure import gist, measure
from ..router.train import evaluate, train
from ..router.world import EngineKind

BATCH = 64


class Engine(NamedTuple):
    """An engine of the config, as far as estimates depend on it."""

    model: str
    kind: EngineKind
    parameters: float | None


def train_now(outcomes: Outcomes) -> dict[str, Any]:
    """Train on the verdicts of this machine's own user and install what is proven better. Raises
    `EdgeCloudError` with the reason where it isn't, and `ModelLoadError` for a damaged installation.
    """
    quality = _installed(outcomes)
    own = outcomes.evidence(quality.fingerprint)
    weights, report, refusal = train(own.take(own.tenants == ""), quality)
    if refusal is not None:
        raise EdgeCloudError(refusal, code="not_better")
    told = report.as_json() if report is not None else {}
    return {"version": outcomes.install(weights, quality.fingerprint, told), **told}


def eval_now(outcomes: Outcomes) -> dict[str, Any]:
    """How the installed version does, and what a version trained now would do, on verdicts not seen."""
    quality = _installed(outcomes)
    own = outcomes.evidence(quality.fingerprint)
    report = evaluate(own.take(own.tenants == ""), quality)
    return {
        "quality": quality.version,
        "verdicts": outcomes.counts(),
        "versions": outcomes.versions(),
        "report": report.as_json() if report is not None else None,
    }


async def label_file(path: Path, settings: Settings, outcomes: Outcomes) -> int:
    """Keep the outcomes of a JSONL file as verdicts; returns how many. A line is a prompt and the scores
    (0..1) of engines by name. Raises `BadRequest` that names the line, and what the embedder raises.
    """
    lines = _read(path)
    quality = load_shipped()
    from .catalog import Catalog

    catalog = Catalog(settings)
    try:
        engines = await _engines(settings, catalog)
        embedder = await catalog.embedder("auto", listed_only=False)
        if embedder.fingerprint != quality.fingerprint:
            raise BadRequest(
                f"Outcomes are learnt with the starter embedder, and {embedder.name} is set: unset embedder."
            )
        for at in range(0, len(lines), BATCH):
            batch = lines[at : at + BATCH]
            vectors = (await embedder.embed([gist(prompt) for prompt, _ in batch])).vectors
            for (prompt, scores), vector in zip(batch, vectors, strict=True):
                for name, score in scores.items():
                    engine = engines.get(name, Engine(name, "hosted", None))
                    outcomes.record(
                        Answered(
                            f"label-{hashlib.sha256(prompt.encode()).hexdigest()[:16]}",
                            name,
                            engine.model,
                            engine.kind,
                            engine.parameters,
                            np.array(vector, np.float32),
                            embedder.fingerprint,
                            features(measure(prompt)),
                        ),
                        "labelled",
                        score=score,
                    )
    finally:
        await catalog.aclose()
    return sum(len(scores) for _, scores in lines)


# --------------------------------------------------------------------------------------------------- inside


def _installed(outcomes: Outcomes) -> LearnedQuality:
    quality = load_shipped()
    return dataclasses.replace(quality, corrections=outcomes.corrections(quality.fingerprint))


async def _engines(settings: Settings, catalog: Any) -> dict[str, Engine]:
    from .world import Engines

    engines = Engines(settings, catalog, None)
    try:
        upstreams = await engines.all()
        return {name: Engine(each.model, each.kind, each.parameters) for name, each in upstreams.items()}
    finally:
        await engines.aclose()


def _read(path: Path) -> list[tuple[str, dict[str, float]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path.name} can't be read ({type(error).__name__}).") from None
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, scores = row["prompt"], {str(name): float(score) for name, score in row["scores"].items()}
            if not isinstance(prompt, str) or not all(0 <= score <= 1 for score in scores.values()):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadRequest(
                f'Line {number} of {path.name} is not {{"prompt": "…", "scores": {{"ENGINE": 0.0 to 1.0}}}}.'
            ) from None
        found.append((prompt, scores))
    return found
