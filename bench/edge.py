"""The edge against its peers: `python bench/edge.py [--rounds 5] [--threads 2]`.

Ours (`edgecloud serve`) and the C++ llama-server hold the same model, context and thread count and answer
the same chats over HTTP, in turns (ours, theirs, theirs, ours …), so that what else the machine does falls
on both. llama-cpp-python's `Llama` is printed beside. Prompts are distinct from their first token, answers
have a forced length, no answer is cached. Medians; the ratio is ours over llama-server's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import peers

CTX = 16384
PARALLEL = 8
WORDS = (Path(__file__).parent / "words.txt").read_text().split()


@dataclass
class Server:
    name: str
    process: subprocess.Popen[Any]
    url: str
    model: str
    results: dict[str, list[float]] = field(default_factory=dict)

    def note(self, metric: str, value: float) -> None:
        self.results.setdefault(metric, []).append(value)

    def median(self, metric: str) -> float:
        return statistics.median(self.results[metric])

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else float("nan")


@dataclass
class Stream:
    """Arrival times of one streamed answer, seconds on the monotonic clock."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def decode_rate(self) -> float:
        return (self.tokens - 1) / (self.arrivals[-1] - self.arrivals[0])


def text(tokens: int, rng: random.Random) -> str:
    """Roughly `tokens` tokens of English words, different every time."""
    return " ".join(rng.choice(WORDS) for _ in range(int(tokens * 0.92)))


def chat(prompt: str, rng: random.Random, system: str | None = None) -> list[dict[str, str]]:
    system = system or f"{rng.randrange(10**9)} is your number. You are a helpful assistant."
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt}]


async def stream(
    session: aiohttp.ClientSession, server: Server, messages: list[dict[str, str]], max_tokens: int
) -> Stream:
    body = {
        "model": server.model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    result = Stream(time.perf_counter())
    async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{server.name}: {response.status} {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(f"{server.name}: {chunk['error']}")
            if chunk.get("choices") and chunk["choices"][0]["delta"].get("content"):
                result.arrivals.append(time.perf_counter())
            if chunk.get("usage"):
                result.tokens = chunk["usage"]["completion_tokens"]
                result.cached = (chunk["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return result


async def eight_chats(session: aiohttp.ClientSession, server: Server, rng: random.Random) -> None:
    prompts = [chat(f"Tell me about {text(24, rng)}", rng) for _ in range(8)]
    began = time.perf_counter()
    streams = await asyncio.gather(*(stream(session, server, prompt, 96) for prompt in prompts))
    server.note("8 chats, tokens/s", sum(s.tokens for s in streams) / (time.perf_counter() - began))
    first, last = min(s.ttft for s in streams), max(s.arrivals[0] for s in streams)
    server.note("8 chats: the first answer begins after, s", first)
    server.note("8 chats: all have begun after, s", last - began)
    together = [sum(at > last for at in s.arrivals) for s in streams]
    seconds = min(s.arrivals[-1] for s in streams) - last
    server.note("8 chats: a token for each then takes, ms", 1000 * seconds / max(1, min(together)))


async def one_chat(session: aiohttp.ClientSession, server: Server, rng: random.Random) -> None:
    result = await stream(session, server, chat(f"Tell me about {text(24, rng)}", rng), 128)
    server.note("1 chat, decode tokens/s", result.decode_rate)
    server.note("1 chat, TTFT s", result.ttft)


async def newcomer(session: aiohttp.ClientSession, server: Server, rng: random.Random) -> None:
    """Three running streams, then a 3,000-token prompt."""
    running = [
        asyncio.create_task(stream(session, server, chat(f"Tell me about {text(24, rng)}", rng), 320))
        for _ in range(3)
    ]
    await asyncio.sleep(1.0)
    arrived = time.perf_counter()
    late = await stream(session, server, chat(text(2900, rng), rng), 8)
    streams = await asyncio.gather(*running)
    gaps = [b - a for s in streams for a, b in zip(s.arrivals, s.arrivals[1:], strict=False) if b > arrived]
    server.note("3,000-token newcomer: largest gap of the others, s", max(gaps))
    server.note("3,000-token newcomer: its own TTFT, s", late.ttft)


async def seen_system_prompt(session: aiohttp.ClientSession, server: Server, rng: random.Random) -> None:
    system = text(1000, rng)
    cold = await stream(session, server, chat("Say hello.", rng, system), 4)
    warm = await stream(session, server, chat("What is two plus two?", rng, system), 4)
    server.note("1,000-token system prompt: cold TTFT, s", cold.ttft)
    server.note("1,000-token system prompt: seen before, TTFT s", warm.ttft)
    server.note("1,000-token system prompt: seen/cold", warm.ttft / cold.ttft)


async def prefill(session: aiohttp.ClientSession, server: Server, rng: random.Random) -> None:
    body = {
        "model": server.model,
        "prompt": text(1500, rng),
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
    }
    began = time.perf_counter()
    async with session.post(f"{server.url}/v1/completions", json=body) as response:
        answer = await response.json()
    server.note("prefill, tokens/s", answer["usage"]["prompt_tokens"] / (time.perf_counter() - began))


WORKLOADS = (one_chat, eight_chats, newcomer, seen_system_prompt, prefill)


def start_ours(name: str, home: Path, threads: int, model: str, *, tuned: bool) -> Server:
    home.mkdir()
    (home / "config.toml").touch()
    env = {
        **os.environ,
        "EDGECLOUD_HOME": str(home),
        "EDGECLOUD_CONFIG": str(home / "config.toml"),
        "EDGECLOUD_RUNTIME": str(home / "run"),
        "EDGECLOUD_LOCAL__THREADS": str(threads),
    }
    if tuned:
        subprocess.run(
            [sys.executable, "-m", "edgecloud", "models", "tune", model],
            env=env,
            check=True,
        )
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "edgecloud", "serve", "--port", "0", "--threads", str(threads)),
            *("--ctx-size", str(CTX), "--parallel", str(PARALLEL), "--model", model),
        ],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"http://[\d.]+:\d+", line)
        if found:
            return Server(name, process, found[0], "auto")
    raise RuntimeError("edgecloud serve did not start")


def start_llama_server(model_path: Path, threads: int) -> Server:
    process = peers.start("llama_server", model_path, CTX, PARALLEL, threads)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    return Server(
        "llama-server", process, address if address.startswith("http") else f"http://{address}", "model"
    )


def one_by_one(model_path: Path, threads: int, rng: random.Random) -> tuple[float, float]:
    """Tokens/s and peak MB of `Llama` answering eight chats one after the other."""
    process = peers.start("llama_single", model_path, CTX, threads)
    assert process.stdin is not None
    assert process.stdout is not None
    job = {"chats": [chat(f"Tell me about {text(24, rng)}", rng) for _ in range(8)], "max_tokens": 96}
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    process.stdin.close()
    process.wait()
    return answer["tokens"] / answer["seconds"], answer["peak_mb"]


async def measure(servers: list[Server], rounds: int, rng: random.Random) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    # A connection each: llama-server closes idle ones while the other server is being measured.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for server in servers:
            await stream(session, server, chat("warm up", rng), 16)
        for turn in range(rounds):
            for workload in WORKLOADS:
                for server in servers if turn % 2 == 0 else servers[::-1]:
                    await workload(session, server, rng)
            print(f"round {turn + 1} of {rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tuned", action="store_true", help="also tune the model and measure the tuned copy")
    parser.add_argument("--json", type=Path, help="write the raw numbers here")
    options = parser.parse_args()

    from edgecloud.models import resolve
    from edgecloud.settings import Settings

    path = resolve(options.model, Settings()).path
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        servers = [
            start_ours("edgecloud", Path(folder) / "plain", options.threads, options.model, tuned=False)
        ]
        if options.tuned:
            servers.append(
                start_ours(
                    "edgecloud, tuned", Path(folder) / "tuned", options.threads, options.model, tuned=True
                )
            )
        servers.append(start_llama_server(path, options.threads))
        try:
            asyncio.run(measure(servers, options.rounds, rng))
            peaks = {server.name: server.peak_mb() for server in servers}
        finally:
            for server in servers:
                server.process.terminate()
                server.process.wait(60)
    single_rate, single_peak = one_by_one(path, options.threads, rng)

    theirs = servers[-1]
    print(
        f"\n{os.cpu_count()} cores, {options.threads} threads, context {CTX}, {PARALLEL} sequences, "
        f"medians of {options.rounds} rounds"
    )
    print(f"\n| | {' | '.join(f'{s.name} | ratio' for s in servers[:-1])} | {theirs.name} |")
    print("|---|" + "---|---|" * (len(servers) - 1) + "---|")
    for metric in theirs.results:
        cells = [
            f"{s.median(metric):.3g} | {s.median(metric) / theirs.median(metric):.2f}" for s in servers[:-1]
        ]
        print(f"| {metric} | {' | '.join(cells)} | {theirs.median(metric):.3g} |")
    cells = [f"{peaks[s.name]:.0f} | {peaks[s.name] / peaks[theirs.name]:.2f}" for s in servers[:-1]]
    print(f"| peak memory, MB | {' | '.join(cells)} | {peaks[theirs.name]:.0f} |")
    print(f"\n`Llama` one by one: {single_rate:.3g} tokens/s over 8 chats, peak {single_peak:.0f} MB")
    if options.json:
        raw = {server.name: server.results for server in servers}
        options.json.write_text(json.dumps(raw, indent=1))


if __name__ == "__main__":
    main()
