"""What a prompt token costs by chunk size and by what is in front of it: `python bench/prefill.py`.

The profile behind the pace of prefill. A chunk of a newcomer's prompt shares each step with three answers
that decode one token each, the first three rows of the batch; the longer the step, the longer their gap, and
the shorter it is, the dearer each prompt token, because llama.cpp's attention on a CPU works in tiles of 64
rows, row by row below that, and full tiles cost no more than started ones. Medians of three, milliseconds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time

from edgecloud.local_engine.llama import Context, Model
from edgecloud.models import resolve
from edgecloud.settings import Settings

ROWS = (16, 32, 63, 64, 96, 128, 131, 256, 512)
BEFORE = (0, 1024, 2048, 3072)
NUM_DECODING = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    model = Model(resolve("smollm2", Settings()).path)
    context = Context(
        model, n_ctx=16384, num_sequences=1 + NUM_DECODING, num_outputs=1 + NUM_DECODING, threads=threads
    )
    rng = random.Random(0)
    positions = [0] * NUM_DECODING

    def step(chunk: int, before: int, num_decoding: int) -> float:
        context.batch.clear()
        for index in range(num_decoding):
            context.batch.add_one(model.eos, positions[index], 1 + index)
            positions[index] += 1
        tokens = [rng.randrange(1000, 40000) for _ in range(chunk)]
        context.batch.add(tokens, before, 0, last=True, every=False)
        began = time.perf_counter()
        context.decode()
        return (time.perf_counter() - began) * 1000

    print(f"{os.cpu_count()} cores, {threads} threads, load {os.getloadavg()[0]:.1f}")
    print("\n| tokens before | " + " | ".join(f"{rows} rows" for rows in ROWS) + " |")
    print("|---" * (1 + len(ROWS)) + "|")
    for before in BEFORE:
        context.remove(0)
        for at in range(0, before, 512):
            step(512, at, 0)
        cells = []
        for rows in ROWS:
            chunk = rows - NUM_DECODING
            times = []
            for _ in range(3):
                times.append(step(chunk, before, NUM_DECODING))
                context.remove(0, before)
            milliseconds = statistics.median(times)
            cells.append(f"{milliseconds / chunk:.1f} a token, {milliseconds:.0f} a step")
        print(f"| {before} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
