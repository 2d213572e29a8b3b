"""Fits P(same answer), the model that the semantic cache ships: `python bench/same_answer.py`.

Pairs: of CLINC150 and BANKING77 each prompt with its four nearest, the same where the intent is; GPTCache's
paraphrases; CheckList's near misses. Only pairs that no veto forbids and that differ in more than one word,
since the others are decided before. Sets count alike whatever their size.

What neighbours' answers are worth beside the pair is fitted after that, with the pair's logit as it is, so
that nothing changes where they are silent: lookups in caches of 1 to 6,000 prompts of one set, drawn by lot,
each with the candidate that the model finds likeliest.

Prints how well each set is foretold by a model that was fitted without it; `--write` puts the model of all
into the package.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from prompts import Pair, Vectors, checklist, everything, gptcache, stream

from edgecloud.cache.agreement import gist_of
from edgecloud.cache.answers import NUM_CANDIDATES
from edgecloud.cache.reading import read
from edgecloud.cache.same import SameAnswer, features
from edgecloud.cache.vetoes import compare, is_same, suspicion, veto
from edgecloud.cache.voices import Voice, balances

Floats = NDArray[np.float64]

TARGET = Path(__file__).parent.parent / "cache" / "data" / "same_answer.npz"
NEIGHBOURS = 4
NEAR = 0.6
PER_SET = 6000
RIDGE = 1e-4
LOOKUPS = 3000
ROUNDS = 4


class Training(NamedTuple):
    """Of one set: the pairs' features, one row each, and labels; and lookups in caches of its prompts."""

    features: Floats
    same: Floats
    lookups: list[Lookup]


class Lookup(NamedTuple):
    """The candidates of one lookup that nothing forbids: features, neighbours' balance, whether the same."""

    features: Floats
    balance: Floats
    same: Floats


def fit(sets: dict[str, Training], fingerprint: str) -> SameAnswer:
    """The pairs' weights, then the voice's, by Newton's method."""
    weights = fit_pairs(sets)
    return SameAnswer(weights, fingerprint, fit_voice([each.lookups for each in sets.values()], weights))


def fit_pairs(sets: dict[str, Training]) -> Floats:
    """A logistic model of all the sets' pairs, on standardised features."""
    x = np.concatenate([each.features for each in sets.values()])
    y = np.concatenate([each.same for each in sets.values()])
    weight = np.concatenate([np.full(len(each.same), 1 / len(each.same)) for each in sets.values()])
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
    return np.append(slopes, weights[-1] - slopes @ mean)


def fit_voice(sets: list[list[Lookup]], weights: Floats) -> float:
    """What a unit of balance adds to a pair's logit. Which is likeliest depends on it, hence rounds."""
    voice = 1.0
    for _ in range(ROUNDS):
        rows = []
        for lookups in sets:
            for lookup in lookups:
                logits = lookup.features @ weights[:-1] + weights[-1]
                best = np.argmax(logits + voice * lookup.balance)
                rows.append((logits[best], lookup.balance[best], lookup.same[best], 1 / len(lookups)))
        z, x, y, share = np.array(rows).T
        for _ in range(30):
            q = 1 / (1 + np.exp(-z - voice * x))
            voice += float(np.sum(share * x * (y - q)) / np.sum(share * x * x * q * (1 - q)))
    return voice


def training_sets(vectors: Vectors) -> dict[str, Training]:
    """What every set teaches."""
    pairs = {
        "clinc150": neighbours("clinc150", vectors),
        "banking77": neighbours("banking77", vectors),
        "gptcache": gptcache(),
        "checklist": checklist(),
    }
    lookups = {name: traffic_lookups(name, vectors) for name in ("clinc150", "banking77")}
    lookups["gptcache"] = paraphrase_lookups(vectors)
    return {name: Training(*_featured(of, vectors), lookups.get(name, [])) for name, of in pairs.items()}


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


def traffic_lookups(name: str, vectors: Vectors) -> list[Lookup]:
    """Prompts of a set looked up among others of it."""
    prompts = stream(name, seed=0, size=PER_SET)
    rng = np.random.default_rng(0)
    texts = [prompt.text for prompt in prompts]
    first = {prompt.intent: row for row, prompt in reversed(list(enumerate(prompts)))}
    # Out of scope, every prompt has an answer of its own.
    answers = [row if prompt.intent == "oos" else first[prompt.intent] for row, prompt in enumerate(prompts)]
    lookups = []
    for _ in range(LOOKUPS):
        size = int((len(texts) - 1) ** rng.random())
        asked, *kept = rng.choice(len(texts), size + 1, replace=False).tolist()
        lookups.append(_lookup(texts[asked], answers[asked], [(texts[i], answers[i]) for i in kept], vectors))
    return [lookup for lookup in lookups if len(lookup.same)]


def paraphrase_lookups(vectors: Vectors) -> list[Lookup]:
    """GPTCache's second prompts looked up among all of its first ones."""
    kept = [(pair.one, row) for row, pair in enumerate(gptcache())]
    lookups = [_lookup(pair.other, row, kept, vectors) for row, pair in enumerate(gptcache())]
    return [lookup for lookup in lookups if len(lookup.same)]


def _lookup(asked: str, answer: int, kept: list[tuple[str, int]], vectors: Vectors) -> Lookup:
    cosines = vectors.of(text for text, _ in kept) @ vectors[asked]
    nearest = np.argsort(-cosines)[:NUM_CANDIDATES]
    # A number agrees with itself and with no other.
    voices = [Voice(float(cosines[row]), "", gist_of(f"{kept[row][1]}")) for row in nearest]
    pairs, heard, same = [], [], []
    for row, voice, balance in zip(nearest, voices, balances(voices), strict=True):
        values = _features(asked, kept[row][0], voice.cosine)
        if values is not None:
            pairs.append(values)
            heard.append(balance)
            same.append(kept[row][1] == answer)
    return Lookup(np.array(pairs), np.array(heard), np.array(same, float))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.name} into the package")
    write = parser.parse_args().write
    vectors = Vectors(everything())
    sets = training_sets(vectors)
    print("| set | pairs | same | foretold without it | P 0.80-0.90 | 0.90-0.95 | 0.95-0.98 | 0.98-1 |")
    print("|---" * 8 + "|")
    for name, (x, y, _) in sets.items():
        model = fit({other: data for other, data in sets.items() if other != name}, vectors.fingerprint)
        p = 1 / (1 + np.exp(-np.array([model.logit(tuple(row)) for row in x])))
        cells = [_share(y, (p >= low) & (p < high)) for low, high in BINS]
        print(f"| {name} | {len(y)} | {y.mean():.3f} | {p.mean():.3f} | " + " | ".join(cells) + " |")
    model = fit(sets, vectors.fingerprint)
    print("\nweights:", ", ".join(f"{weight:.3f}" for weight in model.weights), f"voice: {model.voice:.3f}")
    if write:
        TARGET.parent.mkdir(exist_ok=True)
        np.savez(
            TARGET,
            weights=np.array(model.weights),
            fingerprint=np.array(model.fingerprint),
            voice=np.array(model.voice),
        )
        print("written:", TARGET.name, TARGET.stat().st_size, "bytes")


BINS = ((0.8, 0.9), (0.9, 0.95), (0.95, 0.98), (0.98, 1.01))


def _share(labels: Floats, chosen: NDArray[np.bool_]) -> str:
    return f"{labels[chosen].mean():.3f} of {chosen.sum()}" if chosen.any() else "-"


def _featured(pairs: list[Pair], vectors: Vectors) -> tuple[Floats, Floats]:
    rows, labels = [], []
    for one, other, same, _ in pairs:
        values = _features(one, other, float(vectors[one] @ vectors[other]))
        if values is not None:
            rows.append(values)
            labels.append(same)
    return np.array(rows), np.array(labels, float)


def _features(one: str, other: str, cosine: float) -> tuple[float, ...] | None:
    """None where the pair is decided without a model."""
    a, b = read(one), read(other)
    difference = compare(a, b)
    if is_same(a, b) or veto(a, b, difference) or suspicion(a, b, difference):
        return None
    return features(a, b, difference, cosine)


if __name__ == "__main__":
    main()
