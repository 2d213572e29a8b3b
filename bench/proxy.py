"""What the gateway adds to a request: `python bench/proxy.py [--rounds 5] [--seconds 4]`.

`edgecloud serve` and the `litellm` proxy stand in front of the same scripted upstream, whose answers cost
nothing, and are asked in turns (direct, ours, theirs, theirs, ours …), so that what else the machine does
falls on all.

    pass-through   one model by name; ours journals every request, no cache, one worker each
    routed         ours with a choice of two engines and the semantic cache on; distinct 16-token prompts, so
                   the cache is searched and never hits, and every prompt is embedded and remembered

Added latency is the median of one connection less the median of asking the upstream directly; requests a
second are over 32 connections. The embedding is measured apart, on one thread: alone in this process, and as
the passes that the routed server counts while its requests come over one connection. Either is subtracted,
and both results are printed. The CPU that a server takes for a request of one connection is split into its
event loop's and its other threads'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
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

HERE = Path(__file__).parent
WORDS = (HERE / "words.txt").read_text().split()
CONNECTIONS = 32
KINDS = ("plain", "streamed")

OURS = """
model = "up"
[server]
journal = true
[cache]
enabled = {cached}
http = {cached}
[router]
mode = "pool"
cascade = false
[[pool]]
name = "up"
url = "{url}/v1"
model = "up"
context = 32768
{more}
"""
SECOND = """
[[pool]]
name = "other"
url = "{url}/v1"
model = "other"
context = 32768
price_out = 1.0
"""
LITELLM_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
}
THEIRS = """
model_list:
  - model_name: up
    litellm_params: {{model: openai/up, api_base: "{url}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
"""


@dataclass
class Server:
    """Somebody to ask. `results` are seconds by kind, and requests a second by kind."""

    name: str
    url: str
    model: str
    process: subprocess.Popen[Any] | None = None
    latency: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    rate: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    cpu: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """Of a request, seconds of the main thread and of all others."""
    passes: list[float] = field(default_factory=list)
    """Mean seconds of the embedder's passes, of each turn over one connection."""

    def cpu_s(self) -> tuple[float, float]:
        """What it took so far: its main thread, all others."""
        assert self.process is not None
        pid, loop, others = self.process.pid, 0.0, 0.0
        for task in Path(f"/proc/{pid}/task").iterdir():
            seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
            loop, others = (seconds, others) if task.name == str(pid) else (loop, others + seconds)
        return loop, others


def start_upstream() -> Server:
    process = subprocess.Popen(
        [sys.executable, HERE / "scripted.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return Server("direct", process.stdout.readline().strip(), "up", process)


def start_ours(name: str, url: str, home: Path, *, routed: bool) -> Server:
    home.mkdir()
    more = SECOND.format(url=url) if routed else ""
    text = OURS.format(url=url, cached="true" if routed else "false", more=more)
    if routed:
        # A local name for `auto`, so that it means whatever the router chooses.
        text = text.replace('model = "up"\n[server]', 'model = "smollm2"\n[server]')
    (home / "config.toml").write_text(text)
    port = free_port()
    environment = {
        **os.environ,
        "EDGECLOUD_HOME": str(home / "data"),
        "EDGECLOUD_CONFIG": str(home / "config.toml"),
        "EDGECLOUD_RUNTIME": str(home / "run"),
        "EDGECLOUD_LOCAL__THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "edgecloud", "serve", "--port", str(port), "--log-level", "error"],
        env=environment,
        stderr=subprocess.DEVNULL,
        cwd=HERE.parent,
    )
    return Server(name, f"http://127.0.0.1:{port}", "auto" if routed else "up", process)


def start_theirs(url: str, home: Path) -> Server:
    home.mkdir()
    (home / "config.yaml").write_text(THEIRS.format(url=url))
    port = free_port()
    command = [peers.python("litellm").with_name("litellm"), "--config", home / "config.yaml"]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"],
        env={**os.environ, **LITELLM_ENVIRONMENT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return Server("litellm", f"http://127.0.0.1:{port}", "up", process)


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def wait_for(server: Server, session: aiohttp.ClientSession, patience_s: float = 120.0) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        if server.process is not None and server.process.poll() is not None:
            raise SystemExit(f"{server.name} ended with code {server.process.returncode}")
        try:
            await ask(session, server, "plain", 0)
            return
        except (aiohttp.ClientError, OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise SystemExit(f"{server.name} did not come up") from None
            await asyncio.sleep(0.3)


_asked = 0


def prompt() -> str:
    """A prompt of about sixteen tokens that nobody has asked before."""
    global _asked
    _asked += 1
    picked = [WORDS[(_asked * (place + 3) * 7919) % len(WORDS)] for place in range(11)]
    return f"Question {_asked}: {' '.join(picked)}?"


async def ask(session: aiohttp.ClientSession, server: Server, kind: str, _: int) -> float:
    body: dict[str, Any] = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt()}],
        "temperature": 0,
    }
    if kind == "streamed":
        body["stream"] = True
    began = time.perf_counter()
    async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
        answer = await response.read()
        if response.status != 200:
            raise RuntimeError(f"{server.name}: {response.status} {answer[:200]!r}")
    took = time.perf_counter() - began
    if kind == "streamed" and answer.count(b"data: ") < 30:
        raise RuntimeError(f"{server.name} left chunks out: {answer.count(b'data: ')}")
    return took


async def passes(session: aiohttp.ClientSession, server: Server) -> tuple[float, float]:
    """How often the embedder of a server of ours ran so far, and for how many seconds."""
    async with session.get(f"{server.url}/metrics") as response:
        told = await response.text()
    found = dict(
        re.findall(r"^edgecloud_embedding_pass_seconds_(count|sum)\{.*\} (\S+)$", told, re.MULTILINE)
    )
    return float(found["count"]), float(found["sum"])


async def measure(session: aiohttp.ClientSession, server: Server, kind: str, seconds: float) -> None:
    """One turn: latency over one connection, then requests a second over many."""
    ends = time.monotonic() + seconds / 2
    ran = await passes(session, server) if server.model == "auto" else None
    before, number = server.cpu_s(), len(server.latency[kind])
    while time.monotonic() < ends:
        server.latency[kind].append(await ask(session, server, kind, 0))
    number = len(server.latency[kind]) - number
    loop, others = ((after - first) / number for after, first in zip(server.cpu_s(), before, strict=True))
    server.cpu[kind].append((loop, others))
    if ran is not None:
        times, seconds_in_all = await passes(session, server)
        server.passes.append((seconds_in_all - ran[1]) / (times - ran[0]))
    done = 0

    async def worker() -> None:
        nonlocal done
        while time.monotonic() < ends:
            await ask(session, server, kind, 0)
            done += 1

    began = time.monotonic()
    ends = began + seconds / 2
    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    server.rate[kind].append(done / (time.monotonic() - began))


def embedding_ms() -> float:
    """The median of embedding such a prompt alone, in milliseconds."""
    from edgecloud.local_engine.embedder import open_embedder
    from edgecloud.models import resolve
    from edgecloud.settings import Settings

    async def run() -> float:
        settings = Settings()
        embedder = open_embedder(resolve(settings.embedder, settings), settings)
        times = []
        for _ in range(60):
            began = time.perf_counter()
            await embedder.embed([prompt()])
            times.append(time.perf_counter() - began)
        await embedder.aclose()
        return statistics.median(times[10:]) * 1000

    return asyncio.run(run())


async def run(servers: list[Server], rounds: int, seconds: float) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        for server in servers:
            await wait_for(server, session)
        for server in servers:
            for kind in KINDS:
                for _ in range(20):
                    await ask(session, server, kind, 0)
        for number in range(rounds):
            order = servers if number % 2 == 0 else servers[::-1]
            for kind in KINDS:
                for server in order:
                    await measure(session, server, kind, seconds)


def report(servers: list[Server], embed_ms: float) -> dict[str, Any]:
    direct = servers[0]
    rows: dict[str, Any] = {}
    columns = (("P50 ms", 9), ("added ms", 10), ("P95 ms", 9), ("requests/s", 12), ("loop, CPU ms", 14))
    print(" " * 22 + "".join(f"{name:>{width}}" for name, width in (*columns, ("others", 8))))
    for kind in KINDS:
        base = statistics.median(direct.latency[kind])
        for server in servers:
            median = statistics.median(server.latency[kind])
            p95 = statistics.quantiles(server.latency[kind], n=20)[-1]
            rate = statistics.median(server.rate[kind])
            loop, others = (statistics.median(part) * 1e3 for part in zip(*server.cpu[kind], strict=True))
            rows[f"{server.name} {kind}"] = {
                "p50_ms": median * 1e3,
                "added_ms": (median - base) * 1e3,
                "rate": rate,
                "loop_cpu_ms": loop,
                "others_cpu_ms": others,
            }
            print(
                f"{server.name + ' ' + kind:22}{median * 1e3:9.2f}{(median - base) * 1e3:10.2f}"
                f"{p95 * 1e3:9.2f}{rate:12.0f}{loop:14.2f}{others:8.2f}"
            )
    pass_ms = statistics.median(next(each.passes for each in servers if each.passes)) * 1e3
    rows["embedding"] = {"alone_ms": embed_ms, "pass_ms": pass_ms}
    print(
        f"embedding one of these prompts, one thread: alone {embed_ms:.1f} ms, in the server {pass_ms:.1f} ms"
    )
    for name, less in (
        ("ours", {"": 0.0}),
        ("ours routed", {" less alone": embed_ms, " less in it": pass_ms}),
    ):
        for kind in KINDS:
            mine, theirs = rows[f"{name} {kind}"], rows[f"litellm {kind}"]
            latency = ", ".join(
                f"{(mine['added_ms'] - ms) / theirs['added_ms']:.2f}{what}" for what, ms in less.items()
            )
            print(
                f"{name} {kind}: added latency {latency} of litellm's, "
                f"requests/s {mine['rate'] / theirs['rate']:.1f}x"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    options = parser.parse_args()
    embed_ms = embedding_ms()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        upstream = start_upstream()
        servers = [
            upstream,
            start_ours("ours", upstream.url, home / "ours", routed=False),
            start_ours("ours routed", upstream.url, home / "routed", routed=True),
            start_theirs(upstream.url, home / "theirs"),
        ]
        try:
            asyncio.run(run(servers, options.rounds, options.seconds))
            rows = report(servers, embed_ms)
        finally:
            for server in servers:
                if server.process is not None:
                    server.process.terminate()
                    server.process.wait(30)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
