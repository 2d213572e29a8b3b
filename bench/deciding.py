"""What a decision costs, and what the privacy rules find: `python bench/deciding.py [--requests 2000]`.

Filters and ranks requests of many shapes among 2, 8 and 20 engines and prints the milliseconds of CPU that
one decision takes, without the embedding and with nothing learnt. Then judges texts of some lengths for
privacy. Then tries the shipped examples on each other, a fifth at a time kept apart: how many private
requests are found, and how many others are kept for nothing.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from importlib import resources

from edgecloud.router.exemplars import THRESHOLD, Exemplars
from edgecloud.router.facts import Facts
from edgecloud.router.filter import filter
from edgecloud.router.money import Price
from edgecloud.router.priors import PriorQuality
from edgecloud.router.privacy import judge
from edgecloud.router.rank import rank
from edgecloud.router.structure import measure
from edgecloud.router.world import Budget, EngineView, World
from edgecloud.settings import PrivacySettings, Settings
from edgecloud.types import Capabilities, ChatRequest, Message

NOW = 1_800_000_000.0
FOLDS = 5


def world_of(num_engines: int) -> World:
    """Two engines of this machine, the others elsewhere, one budget half spent at half its time."""
    engines = tuple(
        EngineView(
            name=f"engine-{number}",
            kind="local" if number < 2 else "hosted",
            local=number < 2,
            model=f"model-{2 ** (number % 7)}b",
            capabilities=Capabilities(context=4096 * (1 + number), tools=True),
            price=Price() if number < 2 else Price(0.1 * number, 0.01 * number, 0.4 * number),
            warm_tokens=500 * (number % 3),
        )
        for number in range(num_engines)
    )
    budget = Budget("day", 5.0, 3.0, 0.1, NOW - 43_200, NOW + 43_200)
    return World(NOW, engines, (budget,))


def decisions(num_engines: int, num_requests: int) -> list[float]:
    """Milliseconds of CPU of each decision."""
    source, world, settings, quality = random.Random(0), world_of(num_engines), Settings(), PriorQuality()
    taken = []
    for number in range(num_requests):
        facts = Facts(
            f"req-{number}",
            source.randint(10, 6000),
            structure=measure("Compare two designs, and prove which is right. " * source.randint(1, 40)),
        )
        began = time.process_time()
        rank(facts, filter(facts, world, settings), world, quality, settings)
        taken.append(1000 * (time.process_time() - began))
    return sorted(taken)


def judging(num_chars: int, rounds: int = 20) -> float:
    """Milliseconds of CPU of judging a text that was not seen before."""
    source = random.Random(1)
    words = ["the", "plan", "of", "12", "houses", "she", "drew", "in", "May,", "was", "built:", "call", "it"]
    settings, taken = PrivacySettings(), []
    for _ in range(rounds):
        text = " ".join(source.choice(words) for _ in range(num_chars // 5))[:num_chars]
        request = ChatRequest(messages=(Message("user", text),))
        began = time.process_time()
        judge(request, settings)
        taken.append(1000 * (time.process_time() - began))
    return statistics.median(taken)


def apart(is_test: Callable[[int], bool], lines: list[str]) -> list[tuple[bool, float]]:
    """Whether it is private, and the score, of each line that was kept apart."""
    examples = Exemplars([line for number, line in enumerate(lines) if not is_test(number)])
    kept = [line.split("\t") for number, line in enumerate(lines) if is_test(number)]
    return [(sign == "+", examples.score(text)) for sign, _, text in kept]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=2000)
    arguments = parser.parse_args()

    print("| engines | decision P50, ms | P95, ms | P99, ms |\n|---|---|---|---|")
    for num_engines in (2, 8, 20):
        taken = decisions(num_engines, arguments.requests)
        p50, p95, p99 = (taken[int(len(taken) * share)] for share in (0.5, 0.95, 0.99))
        print(f"| {num_engines} | {p50:.2f} | {p95:.2f} | {p99:.2f} |")

    print("\n| characters | judged for privacy, ms |\n|---|---|")
    for num_chars in (200, 2000, 20_000):
        print(f"| {num_chars:,} | {judging(num_chars):.2f} |")

    text = resources.files("edgecloud.router").joinpath("data/exemplars.tsv").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    random.Random(2).shuffle(lines)
    scores = [
        pair
        for fold in range(FOLDS)
        for pair in apart(lambda number, fold=fold: number % FOLDS == fold, lines)
    ]
    found = [score >= THRESHOLD for is_private, score in scores if is_private]
    alarms = [score >= THRESHOLD for is_private, score in scores if not is_private]
    print("\n| examples kept apart | number | kept on this machine |\n|---|---|---|")
    print(f"| private | {len(found)} | {sum(found) / len(found):.1%} |")
    print(f"| not private | {len(alarms)} | {sum(alarms) / len(alarms):.1%} |")


if __name__ == "__main__":
    main()
