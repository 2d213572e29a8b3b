"""Fits P(same answer), the model that the semantic cache ships: `python bench/same_answer.py`.

Pairs: of CLINC150 and BANKING77 each prompt with its four nearest, the same where the intent is; GPTCache's
paraphrases; CheckList's near misses. Only pairs that no veto forbids and that differ in more than one word,
since the others are decided before. Sets count alike whatever their size. Prints how well each set is
foretold by a model that was fitted without it; `--write` puts the model of all into the package.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from prompts import Pair, Vectors, checklist, everything, gptcache, stream

from edgecloud.cache.reading import read
from edgecloud.cache.same import SameAnswer, features
from edgecloud.cache.vetoes import compare, is_same, suspicion, veto

Floats = NDArray[np.float64]

TARGET = Path(__file__).parent.parent / "cache" / "data" / "same_answer.npz"
NEIGHBOURS = 4
NEAR = 0.6
PER_SET = 6000
RIDGE = 1e-4


def fit(sets: dict[str, tuple[Floats, Floats]], fingerprint: str) -> SameAnswer:
    """A logistic model of all the sets, by Newton's method on standardised features."""
    x = np.concatenate([features for features, _ in sets.values()])
    y = np.concatenate([labels for _, labels in sets.values()])
    weight = np.concatenate([np.full(len(labels), 1 / len(labels)) for _, labels in sets.values()])
    mean, deviation = x.mean(0), x.std(0)
    inputs = np.concatenate([(x - mean) / deviation, np.ones((len(x), 1))], axis=1)
    ridge = RIDGE * np.eye(inputs.shape[1])
    ridge[-1, -1] = 0
    weights = np.zeros(inputs.shape[1])
    for _ in range(30):
        q = 1 / (1 + np.exp(-inputs @ weights))
        curvature = (inputs * (weight * q * (1 - q))[:, None]).T @ inputs + ridge
        weights += np.linalg.solve(curvature, inputs.T @ (weight * (y - q)) - ridge @ weights)
    slopes = weights[:-1] / deviation
    return SameAnswer(np.append(slopes, weights[-1] - slopes @ mean), fingerprint)


def training_sets(vectors: Vectors) -> dict[str, tuple[Floats, Floats]]:
    """Features, one row a pair, and labels of every set."""
    pairs = {
        "clinc150": neighbours("clinc150", vectors),
        "banking77": neighbours("banking77", vectors),
        "gptcache": gptcache(),
        "checklist": checklist(),
    }
    return {name: _featured(of_set, vectors) for name, of_set in pairs.items()}


def neighbours(name: str, vectors: Vectors) -> list[Pair]:
    """Each prompt of a set with its nearest others."""
    prompts = stream(name, seed=0, size=PER_SET)
    matrix = vectors.of(prompt.text for prompt in prompts)
    cosines = matrix @ matrix.T
    np.fill_diagonal(cosines, -1)
    pairs = []
    for row, nearest in enumerate(np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]):
        for other in nearest[cosines[row, nearest] > NEAR]:
            one, two = prompts[row], prompts[other]
            pairs.append(Pair(one.text, two.text, one.intent == two.intent != "oos"))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name} into the package")
    write = parser.parse_args().write
    vectors = Vectors(everything())
    sets = training_sets(vectors)
    print("| set | pairs | same | foretold without it | P 0.80-0.90 | 0.90-0.95 | 0.95-0.98 | 0.98-1 |")
    print("|---" * 8 + "|")
    for name, (x, y) in sets.items():
        model = fit({other: data for other, data in sets.items() if other != name}, vectors.fingerprint)
        p = 1 / (1 + np.exp(-np.array([model.logit(tuple(row)) for row in x])))
        cells = [_share(y, (p >= low) & (p < high)) for low, high in BINS]
        print(f"| {name} | {len(y)} | {y.mean():.3f} | {p.mean():.3f} | " + " | ".join(cells) + " |")
    model = fit(sets, vectors.fingerprint)
    print("\nweights:", ", ".join(f"{weight:.3f}" for weight in model.weights))
    if write:
        TARGET.parent.mkdir(exist_ok=True)
        np.savez(TARGET, weights=np.array(model.weights), fingerprint=np.array(model.fingerprint))
        print("written:", TARGET.name, TARGET.stat().st_size, "bytes")


BINS = ((0.8, 0.9), (0.9, 0.95), (0.95, 0.98), (0.98, 1.01))


def _share(labels: Floats, chosen: NDArray[np.bool_]) -> str:
    return f"{labels[chosen].mean():.3f} of {chosen.sum()}" if chosen.any() else "-"


def _featured(pairs: list[Pair], vectors: Vectors) -> tuple[Floats, Floats]:
    rows, labels = [], []
    for one, other, same, _ in pairs:
        a, b = read(one), read(other)
        difference = compare(a, b)
        if is_same(a, b) or veto(a, b, difference) or suspicion(a, b, difference):
            continue
        rows.append(features(a, b, difference, float(vectors[one] @ vectors[other])))
        labels.append(same)
    return np.array(rows), np.array(labels, float)


if __name__ == "__main__":
    main()
