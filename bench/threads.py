"""How llama.cpp's threads wait for each other, alone and beside other work: `python bench/threads.py`.

GNU OpenMP lets a thread spin at a barrier `GOMP_SPINCOUNT` times before it sleeps. Each setting decodes the
same tokens in a process of its own, in turns, on the machine as it is and then beside one busy process per
core. Medians of decode tokens/s; the ratio is to the library's default.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

SPINS = ("default", "0", "1000", "10000")
WORKER = """
import sys, time
from edgecloud.local_engine.llama import Context, Model
from edgecloud.models import resolve
from edgecloud.settings import Settings
model = Model(resolve("smollm2", Settings()).path)
context = Context(model, n_ctx=512, num_sequences=1, n_batch=64, n_ubatch=64, num_outputs=1,
                  threads=int(sys.argv[1]), kv_type="f16")
for position in range(4 + int(sys.argv[2])):
    if position == 4:
        began = time.perf_counter()
    context.batch.clear()
    context.batch.add_one(model.eos, position, 0)
    context.decode()
print(int(sys.argv[2]) / (time.perf_counter() - began))
"""
BUSY = "while True: pass"


def decode_rate(spins: str, threads: int, tokens: int) -> float:
    """Tokens per second in a fresh process."""
    env = dict(os.environ)
    # The engine sets its own value unless there is one; the default is 300,000 looks (libgomp's env.c).
    env["GOMP_SPINCOUNT"] = "300000" if spins == "default" else spins
    command = [sys.executable, "-c", WORKER, str(threads), str(tokens)]
    return float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)


def measure(threads: int, rounds: int, tokens: int) -> dict[str, float]:
    rates: dict[str, list[float]] = {spins: [] for spins in SPINS}
    for _ in range(rounds):
        for spins in SPINS:
            rates[spins].append(decode_rate(spins, threads, tokens))
    return {spins: statistics.median(values) for spins, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    idle = measure(options.threads, options.rounds, 64)
    hogs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        busy = measure(options.threads, options.rounds, 16)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    print("\n| spins | alone, tokens/s | ratio | beside a busy process per core | ratio |")
    print("|---|---|---|---|---|")
    for spins in SPINS:
        alone, beside = idle[spins] / idle["default"], busy[spins] / busy["default"]
        print(f"| {spins} | {idle[spins]:.3g} | {alone:.2f} | {busy[spins]:.3g} | {beside:.1f} |")


if __name__ == "__main__":
    main()
