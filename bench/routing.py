"""How well the router tells who will be right: `python bench/routing.py [mmlu gsm8k llmrouter far …]`.

RouteLLM's metric: questions go to the strong model in the order of their expected gain, and the score is
drawn over the share of paid calls. APGR is the area between the curve and the weak model's (0.5 is a coin),
CPT50 and CPT80 the percent of calls that recover half and four fifths of the gap. `length` is the prompt's
length and nothing else: what does not beat it has learnt nothing. `oracle` knows both outcomes.

Ours is trained on labels of the same set and the same pair of models, which the published routers were not,
so it should be ahead of them. Means over five random splits, with their standard deviation.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from fit_router import embed, shipped_rows
from numpy.typing import NDArray
from prompts import Pair, checklist, gptcache

from edgecloud.router.acceptance import chance
from edgecloud.router.facts import Facts
from edgecloud.router.learned import load_shipped
from edgecloud.router.learning.bags import bags_of
from edgecloud.router.learning.features import LENGTH, features
from edgecloud.router.learning.heads import Chances, Heads, fit_heads
from edgecloud.router.learning.measures import apgr, auc, cpt, ece
from edgecloud.router.learning.rows import Rows
from edgecloud.router.ledger import Ledger, RequestEntry
from edgecloud.router.precedents import TOSS_UP, Precedents, precedent_of
from edgecloud.router.structure import gist, measure
from edgecloud.router.wording import wording
from edgecloud.types import CacheInfo, Receipt, new_id

ROUTELLM = ("mixtral-8x7b-instruct", "gpt-4-1106-preview")
LLMROUTER = ("gemma-2-9b-it", "llama-3.1-nemotron-51b-instruct")
PARAPHRASED = (("llama-3.1-8b-instruct", ROUTELLM[1]), ROUTELLM, LLMROUTER)
SEEDS = range(5)
FOLDS = 5
SHARES = np.array([0.05, 0.2, 0.5, 0.8, 0.95])
ALL_SHARES = np.linspace(0.05, 0.95, 37)
CASCADE = Path(__file__).parent / "data" / "routing" / "cascade.csv.gz"
Scores = NDArray[np.float64]


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


def show(title: str, trials: Iterator[Trial], *published: tuple[str, float, float, float]) -> None:
    """Print the routers of one set, side by side."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    errors, trusts = [], []
    for rows, chances in trials:
        weak, strong = rows.scores.T
        gains = {
            "random": np.random.default_rng(len(errors)).random(len(rows)),
            "length": rows.features[:, LENGTH].astype(float),
            "ours": chances.p_ok[:, 1] - chances.p_ok[:, 0],
            "oracle": strong - weak,
        }
        for name, gain in gains.items():
            found.setdefault(name, []).append(
                (apgr(gain, weak, strong), cpt(gain, weak, strong, 0.5), cpt(gain, weak, strong, 0.8))
            )
        luck = (np.random.default_rng(1).random(rows.scores.shape) < chances.p_ok).astype(float)
        errors.append(
            [ece(chances.p_ok[:, column], of[:, column]) for of in (rows.scores, luck) for column in (0, 1)]
        )
        trusts.append(float(chances.trust.mean()))
    ours, length = (np.array(found[name])[:, 0] for name in ("ours", "length"))
    print(f"\n{title}\n  {'router':<28} {'APGR':>6} {'±':>6} {'CPT50':>6} {'CPT80':>6}")
    for name, *numbers in published:
        print(f"  {name:<28} {numbers[0]:6.3f} {'':>6} {numbers[1]:6.1f} {numbers[2]:6.1f}")
    for name, rows_found in found.items():
        mean, spread = np.mean(rows_found, 0), np.std(rows_found, 0)
        print(f"  {name:<28} {mean[0]:6.3f} {spread[0]:6.3f} {mean[1]:6.1f} {mean[2]:6.1f}")
    weak_error, strong_error, *luck_errors = np.mean(errors, 0)
    print(
        f"  calibration error: weak {weak_error:.3f}, strong {strong_error:.3f} (without any error: "
        f"{luck_errors[0]:.3f}, {luck_errors[1]:.3f}); trust {np.mean(trusts):.2f}"
    )
    print(f"  ours - length, split by split: {', '.join(f'{one:+.3f}' for one in ours - length)}")


def mmlu() -> None:
    published = [
        ("RouteLLM best (SW ranking)", 0.603, 35.4, 71.6),
        ("RouteLLM matrix fact.", 0.597, 35.5, 71.4),
    ]
    show("MMLU, 1,500 labels", splits(rows_of("mmlu", ROUTELLM), 1500), *published)


def gsm8k() -> None:
    rows = rows_of("gsm8k", ROUTELLM)
    published = [
        ("RouteLLM best (causal LLM)", 0.622, 33.6, 63.3),
        ("RouteLLM matrix fact.", 0.565, 38.8, 72.6),
    ]
    show(f"GSM8K, {len(rows) // 2} labels", splits(rows, len(rows) // 2), *published)


def llmrouter() -> None:
    rows = rows_of("llmrouter", LLMROUTER)
    show("LLMRouter, gemma-2-9b against nemotron-51b, 5 folds", crossed(rows))
    # The ceiling of what a question's task can tell, for whoever knows the task.
    weak, strong = rows.scores.T
    gain = np.empty(len(rows))
    for task in np.unique(rows.groups):
        gain[rows.groups == task] = (strong - weak)[rows.groups == task].mean()
    print(f"  {'(mean gain of the true task)':<28} {apgr(gain, weak, strong):6.3f}")


def far() -> None:
    rows, other = rows_of("mmlu", ROUTELLM), rows_of("gsm8k", ROUTELLM)
    show("MMLU, subjects never seen", unseen(rows))
    order = np.random.default_rng(0).permutation(len(rows))
    show("GSM8K, learnt from MMLU", iter([tried(rows.take(order[:5000]), other)]))


def flips() -> None:
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
    for small, large in PARAPHRASED:
        columns = [heads.models.index(small), heads.models.index(large)]
        print(f"  {small + ' / ' + large:<58} " + " ".join(f"{share:>6.0%}" for share in SHARES), end="")
        print("  worst off it  mean |change|")
        for name, (vectors, p_ok) in known.items():
            gain, mixed = (np.diff(chances[:, columns])[:, 0] for chances in (p_ok, traffic))
            change = np.abs(np.diff(np.split(gain, 2), axis=0)).mean()
            for whose, all_gains in (("mixed traffic", mixed), ("the set", gain)):
                for how, goes in (
                    ("alone", gain.__gt__),
                    ("in turn", partial(in_turn, vectors, gain)),
                    ("restarted", partial(restarted, vectors, gain)),
                ):
                    flipped = [crossed_by(goes(line)).mean() for line in np.quantile(all_gains, 1 - SHARES)]
                    lines = np.quantile(all_gains, 1 - ALL_SHARES)
                    those, worst = max(((crossed_by(goes(line)), line) for line in lines), key=_most)
                    off = np.abs(gain - worst).reshape(2, -1)[:, those].mean() if those.any() else 0.0
                    shares = " ".join(f"{share:6.1%}" for share in flipped)
                    title = f"{name}, of {whose}, {how}"
                    print(
                        f"    {title:<56} {shares} {those.mean():6.1%} {off:6.3f}  {change:.3f}", flush=True
                    )
    steadied()


def _judged(heads: Heads, pairs: list[Pair]) -> tuple[NDArray[np.float32], Scores]:
    """Vectors of pairs, first one of each, then the others, and the chances of all models."""
    texts = [pair[side] for side in (0, 1) for pair in pairs]
    vectors, _ = asyncio.run(embed([gist(text) for text in texts]))
    structure = np.stack([features(measure(text)) for text in texts])
    return vectors, heads.predict(vectors, structure, bags_of([wording(gist(text)) for text in texts])).p_ok


def steadied() -> None:
    """What following precedents costs: MMLU's area, each question by itself and all in turn."""
    (trial,) = islice(splits(rows_of("mmlu", ROUTELLM), 1500), 1)
    weak, strong = trial.rows.scores.T
    gain = trial.chances.p_ok[:, 1] - trial.chances.p_ok[:, 0]
    lines = np.quantile(gain, 1 - np.linspace(0.1, 0.9, 9))
    print("\nMMLU, scores with the share of prompts that go to the strong model, 10 to 90 % asked for")
    for how, goes in (("alone", gain.__gt__), ("in turn", partial(in_turn, trial.rows.vectors, gain))):
        chosen = [goes(line) for line in lines]
        print(
            f"  {how:<8}",
            "  ".join(f"{np.where(c, strong, weak).mean():.3f} ({c.mean():.0%})" for c in chosen),
        )


def in_turn(
    vectors: NDArray[np.float32],
    gain: Scores,
    line: float,
    precedents: Precedents | None = None,
    ledger: Ledger | None = None,
) -> NDArray[np.bool_]:
    """Which questions go to the strong model, asked one after the other; the ledger keeps where they went."""
    precedents = precedents or Precedents()
    strong = gain > line
    for number, ahead in enumerate((gain - line).tolist()):
        facts = Facts(new_id("req"), 1, vector=tuple(vectors[number].tolist()))
        before = precedents.of(facts) if abs(ahead) <= TOSS_UP else None
        if before is not None:
            strong[number] = before == "strong"
        precedent = precedent_of(facts, "strong" if strong[number] else "weak", "chat")
        assert precedent is not None
        precedents.note(precedent)
        if ledger is not None:
            ledger.settle(_line(facts.request_id), (), (), precedent=precedent)
    return strong


def restarted(vectors: NDArray[np.float32], gain: Scores, line: float) -> NDArray[np.bool_]:
    """The same, the second half by a process that begins when the first has ended."""
    half, strong = len(gain) // 2, []
    with TemporaryDirectory() as folder:
        for part in (slice(0, half), slice(half, None)):
            with closing(Ledger(Path(folder) / "edgecloud.db")) as ledger:
                precedents = Precedents()
                precedents.catch_up(ledger.precedents())
                with ledger.together():
                    strong.append(in_turn(vectors[part], gain[part], line, precedents, ledger))
    return np.concatenate(strong)


def _line(request_id: str) -> RequestEntry:
    receipt = Receipt(request_id, "", "", "", "auto", "", (), CacheInfo(), 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    return RequestEntry(receipt, 0.0, "ask", None, "chat", "ok", 0)


def crossed_by(strong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pairs whose halves go to different sides."""
    one, other = np.split(strong, 2)
    return one != other


def _most(flipped: tuple[NDArray[np.bool_], float]) -> int:
    return int(flipped[0].sum())


def cascade() -> None:
    """What the acceptance of a local draft knows of its being right, by set."""
    print("\nCascade: AUC for 'the local answer is right' (Llama-3.1-8B)")
    with gzip.open(CASCADE, "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    names = sorted({line["set"] for line in lines})
    print(f"  {'set':<20} {'rows':>5} {'accept':>7} {'entropy':>8} {'asked':>6}")
    for name in names:
        rows = [line for line in lines if line["set"] == name]
        right = np.array([float(row["small_score"]) for row in rows])
        ours = np.array([chance(0.5, [float(row["mean_logprob"])]) for row in rows])
        entropy = -np.array([float(row["mean_entropy"]) for row in rows])
        asked = np.array([float(row["self_confidence"] or 0) for row in rows])
        print(
            f"  {name:<20} {len(rows):>5} {auc(ours, right):7.3f} {auc(entropy, right):8.3f} "
            f"{auc(asked, right):6.3f}"
        )


PARTS: dict[str, Callable[[], None]] = {
    "mmlu": mmlu,
    "gsm8k": gsm8k,
    "llmrouter": llmrouter,
    "far": far,
    "flips": flips,
    "cascade": cascade,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    for name in parser.parse_args().parts or PARTS:
        PARTS[name]()


if __name__ == "__main__":
    main()
