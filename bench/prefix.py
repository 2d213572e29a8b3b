"""A chat that goes on after a restart, from the disk and from nothing: `python bench/prefix.py`.

The real engine in a fresh process each time: time to the first token of the next turn of a chat of about
2,000 tokens, with what was computed for it read from `prefixes.db`, and with an empty file. In turns, and the
two first tokens must agree. The model is loaded before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgecloud.cache.prefix import PrefixStore
from edgecloud.cache.prefix_key import StateKind
from edgecloud.local_engine.host import ModelHost
from edgecloud.local_engine.saved import SavedPrefixes
from edgecloud.models import resolve
from edgecloud.settings import LocalSettings, Settings
from edgecloud.types import ChatRequest, Done, Message, Sampling, TextDelta

LIMIT_BYTES = 2 << 30


async def turn(file: Path, text: str, threads: int) -> dict[str, float | str]:
    """One turn in this process: seconds to the first token, to the end of the process, and what came."""
    settings = Settings(local=LocalSettings(threads=threads, ctx_size=8192))
    saved = SavedPrefixes(lambda: PrefixStore(file, limit_bytes=LIMIT_BYTES))
    host = ModelHost(settings, saved)
    engine = host.engine(resolve("smollm2", settings))
    await engine.load()
    request = ChatRequest(
        (Message("user", text),),
        max_tokens=4,
        sampling=Sampling(temperature=0.0),
        ignore_eos=True,
        chat_id="chat-bench",
    )
    began, first, answer, cached, prompt = time.perf_counter(), 0.0, "", 0, 0
    async for event in engine.generate(request):
        if isinstance(event, TextDelta):
            first = first or time.perf_counter() - began
            answer += event.text
        if isinstance(event, Done):
            cached, prompt = event.usage.cached_tokens, event.usage.prompt_tokens
    began = time.perf_counter()
    await host.aclose()
    return {
        "ttft_s": first,
        "close_s": time.perf_counter() - began,
        "answer": answer,
        "cached": cached,
        "prompt": prompt,
    }


def print_disk(folder: Path, num_tokens: int = 2000, num_bytes: int = 46_000_000) -> None:
    """What the disk's part is: as many random bytes as the starter has for so many tokens."""
    kind, tokens = StateKind("random", "0" * 32, "bench", "f16"), list(range(num_tokens))
    state = bytearray(os.urandom(num_bytes))
    store = PrefixStore(folder / "disk.db", limit_bytes=LIMIT_BYTES)

    def timed(work: Callable[[], Any]) -> tuple[Any, float]:
        began = time.perf_counter()
        return work(), time.perf_counter() - began

    _, save_s = timed(lambda: store.save(kind, tokens, state, "chat-bench"))
    match, find_s = timed(lambda: store.find(kind, tokens))
    _, read_s = timed(lambda: store.read(kind, match.number))
    _, delete_s = timed(lambda: store.delete_chats(["chat-bench"]))
    store.close()
    print(
        f"\n{num_bytes / 1e6:.0f} MB: saved in {save_s:.2f} s, found in {1000 * find_s:.1f} ms, read and "
        f"checked in {read_s:.2f} s, deleted without trace in {delete_s:.2f} s"
    )


def in_a_process(file: Path, text: str, threads: int) -> dict[str, float | str]:
    arguments = [sys.executable, __file__, "--turn", str(file), "--threads", str(threads)]
    done = subprocess.run(arguments, input=text.encode(), stdout=subprocess.PIPE, check=True)
    found: dict[str, float | str] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--turn", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn is not None:
        print(json.dumps(asyncio.run(turn(options.turn, sys.stdin.read(), options.threads))))
        return
    print(f"{os.cpu_count()} cores, {options.threads} threads, load {os.getloadavg()[0]:.1f}", flush=True)
    warm: list[dict[str, float | str]] = []
    cold: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            # About ten tokens a sentence, other ones each round.
            chat = " ".join(
                f"{number} boxes of {at} apples stand in row {at * 7 % 100}."
                for at in range(options.tokens // 15)
            )
            file = Path(folder) / f"{number}.db"
            in_a_process(file, chat, options.threads)
            question = chat + "\n\nHow many boxes are there?"
            warm.append(in_a_process(file, question, options.threads))
            cold.append(in_a_process(Path(folder) / f"{number}-cold.db", question, options.threads))
            assert warm[-1]["answer"] == cold[-1]["answer"], (warm[-1], cold[-1])
        print_disk(Path(folder))

    def median(runs: list[dict[str, float | str]], key: str) -> float:
        return statistics.median(float(run[key]) for run in runs)

    print("\n| | prompt tokens | computed | TTFT, s | ratio | end of the process, s |")
    print("|---|---|---|---|---|---|")
    for name, runs in (("cold", cold), ("from disk", warm)):
        computed = median(runs, "prompt") - median(runs, "cached")
        ratio = median(runs, "ttft_s") / median(cold, "ttft_s")
        print(
            f"| {name} | {median(runs, 'prompt'):.0f} | {computed:.0f} | {median(runs, 'ttft_s'):.3f} "
            f"| {ratio:.3f} | {median(runs, 'close_s'):.2f} |"
        )


if __name__ == "__main__":
    main()
