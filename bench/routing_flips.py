"""How often a paraphrase of a question goes elsewhere; `routing.py flips` prints it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from fit_router import embed, shipped_rows
from numpy.typing import NDArray
from prompts import Pair, checklist, gptcache
from routing_trials import LLMROUTER, ROUTELLM, rows_of, splits

from edgecloud.router.facts import Facts
from edgecloud.router.learned import load_shipped
from edgecloud.router.learning.bags import bags_of
from edgecloud.router.learning.features import features
from edgecloud.router.learning.heads import Heads
from edgecloud.router.ledger import Ledger, RequestEntry
from edgecloud.router.precedents import TOSS_UP, Precedents, precedent_of
from edgecloud.router.structure import gist, measure
from edgecloud.router.wording import wording
from edgecloud.types import CacheInfo, Receipt, new_id

PARAPHRASED = (("llama-3.1-8b-instruct", ROUTELLM[1]), ROUTELLM, LLMROUTER)
SHARES = np.linspace(0.05, 0.95, 37)
PRINTED = np.searchsorted(SHARES, np.array([0.05, 0.2, 0.5, 0.8, 0.95]) - 1e-9)
MOST_FLIPS = 0.05
Scores = NDArray[np.float64]
Questions = list[tuple[float, ...]]


def flips() -> None:
    with TemporaryDirectory() as folder, closing(Ledger(Path(folder) / "edgecloud.db")) as ledger:
        paraphrased(ledger)
    steadied()


def paraphrased(ledger: Ledger) -> None:
    """How often a paraphrase goes elsewhere, wherever the price of the strong model draws the line: by the
    share of mixed traffic that goes to it, and by the share of the set itself, which is the hardest line.

    `alone` is each prompt by itself, `in turn` all of them one after the other, first one of each pair, then
    the others, remembering as the router does where like ones went, and `restarted` the same by a process of
    its own for either, the second of which knows of the first what the ledger keeps. `worst` is at the line
    that most pairs cross, `off it` how far from that line the gains of those pairs are on average: what the
    one or the other of the two answers is worth more, in P(right).
    """
    print("\nRoute flips on paraphrases, by the share of prompts that go to the strong model")
    sets: dict[str, list[Pair]] = {
        "GPTCache pairs": gptcache()[:400],
        "CheckList, may hit": [pair for pair in checklist() if pair.same][:400],
    }
    heads = load_shipped().heads
    rows = shipped_rows()
    rows = rows.take(np.random.default_rng(0).permutation(len(rows))[:2000])
    assert rows.bags is not None
    traffic = heads.predict(rows.vectors, rows.features, rows.bags).p_ok
    known = {name: _judged(heads, pairs) for name, pairs in sets.items()}
    most: dict[str, float] = {}
    for small, large in PARAPHRASED:
        columns = [heads.models.index(small), heads.models.index(large)]
        print(f"  {small + ' / ' + large:<58} " + " ".join(f"{SHARES[at]:>6.0%}" for at in PRINTED), end="")
        print("  worst off it  mean |change|")
        for name, (vectors, p_ok) in known.items():
            gain, mixed = (np.diff(chances[:, columns])[:, 0] for chances in (p_ok, traffic))
            change = np.abs(np.diff(np.split(gain, 2), axis=0)).mean()
            for whose, all_gains in (("mixed traffic", mixed), ("the set", gain)):
                lines = np.quantile(all_gains, 1 - SHARES)
                for how, goes in (
                    ("alone", gain.__gt__),
                    ("in turn", partial(in_turn, vectors, gain)),
                    ("restarted", partial(restarted, ledger, vectors, gain)),
                ):
                    crossed = np.stack([crossed_by(goes(line)) for line in lines])
                    flipped = crossed.mean(1)
                    worst = int(flipped.argmax())
                    those = crossed[worst]
                    off = np.abs(gain - lines[worst]).reshape(2, -1)[:, those].mean() if those.any() else 0.0
                    most[how] = max(most.get(how, 0.0), float(flipped[worst]))
                    shares = " ".join(f"{flipped[at]:6.1%}" for at in PRINTED)
                    title = f"{name}, of {whose}, {how}"
                    print(
                        f"    {title:<56} {shares} {flipped[worst]:6.1%} {off:6.3f}  {change:.3f}", flush=True
                    )
    for how, share in most.items():
        verdict = "keeps" if share <= MOST_FLIPS else "misses"
        print(f"  the worst of all, {how}: {share:.1%} {verdict} {MOST_FLIPS:.0%}")


def _judged(heads: Heads, pairs: list[Pair]) -> tuple[Questions, Scores]:
    """Vectors of pairs, first one of each, then the others, and the chances of all models."""
    texts = [pair[side] for side in (0, 1) for pair in pairs]
    vectors, _ = asyncio.run(embed([gist(text) for text in texts]))
    structure = np.stack([features(measure(text)) for text in texts])
    chances = heads.predict(vectors, structure, bags_of([wording(gist(text)) for text in texts])).p_ok
    return questions_of(vectors), chances


def questions_of(vectors: NDArray[np.float32]) -> Questions:
    return [tuple(vector) for vector in vectors.tolist()]


def steadied() -> None:
    """What following precedents costs: MMLU's area, each question by itself and all in turn."""
    (trial,) = islice(splits(rows_of("mmlu", ROUTELLM), 1500), 1)
    weak, strong = trial.rows.scores.T
    gain = trial.chances.p_ok[:, 1] - trial.chances.p_ok[:, 0]
    lines = np.quantile(gain, 1 - np.linspace(0.1, 0.9, 9))
    print("\nMMLU, scores with the share of prompts that go to the strong model, 10 to 90 % asked for")
    for how, goes in (
        ("alone", gain.__gt__),
        ("in turn", partial(in_turn, questions_of(trial.rows.vectors), gain)),
    ):
        chosen = [goes(line) for line in lines]
        print(
            f"  {how:<8}",
            "  ".join(f"{np.where(c, strong, weak).mean():.3f} ({c.mean():.0%})" for c in chosen),
        )


def in_turn(
    vectors: Questions, gain: Scores, line: float, *, who: str = "", ledger: Ledger | None = None
) -> NDArray[np.bool_]:
    """Which questions go to the strong model, asked one after the other; the ledger keeps where they went."""
    return _asked(Precedents(), vectors, gain - line, who, ledger)


def restarted(ledger: Ledger, vectors: Questions, gain: Scores, line: float) -> NDArray[np.bool_]:
    """The same, the second half by a process that begins when the first has ended."""
    half, who = len(gain) // 2, new_id("who")
    with ledger.together():
        one = in_turn(vectors[:half], gain[:half], line, who=who, ledger=ledger)
    begun = Precedents()
    begun.catch_up(ledger.precedents())
    return np.concatenate([one, _asked(begun, vectors[half:], gain[half:] - line, who, None)])


def _asked(
    precedents: Precedents, vectors: Questions, ahead: Scores, who: str, ledger: Ledger | None
) -> NDArray[np.bool_]:
    strong = ahead > 0
    for number, vector in enumerate(vectors):
        facts = Facts(new_id("req"), 1, vector=vector, tenant=who)
        before = precedents.of(facts) if abs(ahead[number]) <= TOSS_UP else None
        if before is not None:
            strong[number] = before == "strong"
        precedent = precedent_of(facts, "strong" if strong[number] else "weak", "chat")
        assert precedent is not None
        precedents.note(precedent)
        if ledger is not None:
            ledger.settle(_line(facts.request_id), (), (), precedent=precedent)
    return strong


def _line(request_id: str) -> RequestEntry:
    receipt = Receipt(request_id, "", "", "", "auto", "", (), CacheInfo(), 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    return RequestEntry(receipt, 0.0, "ask", None, "chat", "ok", 0)


def crossed_by(strong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pairs whose halves go to different sides."""
    one, other = np.split(strong, 2)
    return one != other
