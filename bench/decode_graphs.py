"""The pool's engine on a GPU, end to end: decode steps as CUDA graphs against steps launched as they come.

`bench/gpu.sh` runs this. Two small Llamas with random weights, one in bf16 and one in 4 bits, answer requests
that come and go, behind the real scheduler and runner, in three ways:

    graphs     decode steps are captured, and replayed
    padded     the same tensors, filled up to the same sizes, launched as they come
    launched   without any of that

Graphs and padded steps must give the same tokens, all of them: capturing changes when kernels are launched,
not what they compute. Launched steps have other batch sizes, for which a library may sum in another order;
their first token that differs must be a near tie. Then the milliseconds of a step.

`--dry-run` needs no GPU: requests all at once against one at a time, in the CPU forms.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from guard import each

from edgecloud.kernels.w4a16 import pack_int4
from edgecloud.pool.config import PoolConfig
from edgecloud.pool.models.config import DecoderConfig
from edgecloud.pool.models.graphs import DecodeGraphs
from edgecloud.pool.models.matrices import DecoderWeights, LayerWeights, Matrix
from edgecloud.pool.models.torch_decoder import TorchDecoder
from edgecloud.pool.models.weights import PackedPart
from edgecloud.pool.plan import Drawn
from edgecloud.pool.runner import Drawing, RunnerFacts
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job
from edgecloud.pool.torch_runner import TorchRunner

VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, WIDE = 2048, 512, 4, 8, 2, 64, 1024
# A window in every other layer: both kinds of plan are captured.
CONFIG = DecoderConfig(
    family="llama", vocab_size=VOCABULARY, hidden=HIDDEN, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS,
    head_dim=HEAD, intermediate=WIDE, context=12288, norm_eps=1e-5,
    frequencies=tuple(10000 ** (-2 * pair / HEAD) for pair in range(HEAD // 2)),
    windows=(None, 200) * (LAYERS // 2), tied=False,
)  # fmt: skip
MAX_RUNNING = 12
LIMIT_S = 60.0
"""For one model, and to begin the process that it runs in."""
TIE = 0.05
"""Logprobs nearer than this are a tie in bf16."""


def make_weights(is_packed: bool, dtype: torch.dtype) -> DecoderWeights:
    generator = torch.Generator().manual_seed(1)

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def matrix(n: int, k: int) -> Matrix:
        if not is_packed:
            return Matrix((floats(n, k) * k**-0.5).to(dtype))
        codes = torch.randint(0, 16, (k, n), generator=generator)
        scale = torch.full((k // 64, n), 0.22 * k**-0.5)
        part = PackedPart(pack_int4(codes, scale, -7.5 * scale), None, "AWQ", 0)
        return Matrix(torch.empty(0, k), packed=(part,))

    def norm() -> torch.Tensor:
        return torch.rand(HIDDEN, generator=generator) + 0.5

    layers = [
        LayerWeights(
            norm(), matrix((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN), None, None, matrix(HIDDEN, HEADS * HEAD),
            norm(), matrix(2 * WIDE, HIDDEN), matrix(HIDDEN, WIDE),
        )
        for _ in range(LAYERS)
    ]  # fmt: skip
    embedding = Matrix(floats(VOCABULARY, HIDDEN).to(dtype))
    # Large logits: few ties.
    head = Matrix((floats(VOCABULARY, HIDDEN) * 3 * HIDDEN**-0.5).to(dtype))
    return DecoderWeights(embedding, layers, norm(), head)


Answer = list[tuple[int, float]]
"""Each token, and by how much its logprob led."""


@dataclass
class Request:
    """`after` is the step before which it comes."""

    after: int
    prompt: list[int]
    max_tokens: int


def requests(context: int) -> list[Request]:
    """Some that come together, some later, one with a long prompt: batches grow, shrink, and mix with
    chunks."""
    generator = torch.Generator().manual_seed(2)

    def prompt(length: int) -> list[int]:
        return [int(token) for token in torch.randint(0, VOCABULARY, (length,), generator=generator)]

    lengths = [5, 16, 33, 100, 250, 1, 64, 17, 40]
    some = [
        Request(4 * (number // 3), prompt(length), 20 + 3 * number) for number, length in enumerate(lengths)
    ]
    return sorted([*some, Request(10, prompt(context - 64), 30)], key=lambda each: each.after)


class Engine:
    """A scheduler and a runner over one decoder."""

    def __init__(self, decoder: TorchDecoder) -> None:
        block_size = decoder.kv.block_size
        config = PoolConfig(
            1024,
            block_size,
            context=CONFIG.context,
            token_budget=2048,
            max_chunk=2048,
            max_running=MAX_RUNNING,
        )
        facts = RunnerFacts(
            "random", str(decoder.kv.storage.device), VOCABULARY, CONFIG.context, block_size, 1, ""
        )
        self.runner = TorchRunner(decoder, facts)
        self.scheduler = Scheduler(config)

    def submit(self, request: Request) -> int:
        request_id = self.scheduler.submit(Job(tuple(request.prompt), request.max_tokens), 0.0)
        self.runner.begin(request_id, tuple(request.prompt), Drawing(logprobs=2))
        return request_id

    def step(self, said: dict[int, Answer]) -> None:
        """One step; adds what it drew to `said`, by request."""
        plan = self.scheduler.schedule(0.0)
        output = self.runner.execute(plan)
        drawn = {
            key: tuple(Drawn(draw.tokens, draw.stop) for draw in each) for key, each in output.draws.items()
        }
        for item in plan.items:
            for draw in output.draws[item.sequence_id]:
                for score in draw.scores:
                    lead = score.top[0][1] - score.top[1][1]
                    said.setdefault(item.request_id, []).append((score.token_id, lead))
        for ended in self.scheduler.commit(plan, drawn, 0.0).ended:
            self.runner.end(ended.request_id)


def answers(decoder: TorchDecoder, asked: list[Request], *, alone: bool = False) -> list[Answer]:
    """What each request is answered; `alone`: one after the other."""
    engine = Engine(decoder)
    said: dict[int, Answer] = {}
    number = 0
    # Ids are given in the order of submission, which is that of `asked`.
    for request in asked:
        while engine.scheduler.has_work and (alone or number < request.after):
            engine.step(said)
            number += 1
        engine.submit(request)
    while engine.scheduler.has_work:
        engine.step(said)
    return [said[request_id] for request_id in range(len(asked))]


def compare(ours: list[Answer], theirs: list[Answer], tie: float) -> int:
    """Answers that part where it was no tie; from a tie on, texts may go their own ways."""
    wrong = 0
    for mine, other in zip(ours, theirs, strict=True):
        first = next((at for at, (a, b) in enumerate(zip(mine, other, strict=True)) if a[0] != b[0]), None)
        wrong += first is not None and min(mine[first][1], other[first][1]) >= tie
    return wrong


def make_decoder(weights: DecoderWeights, device: torch.device, kv_type: torch.dtype) -> TorchDecoder:
    return TorchDecoder(
        CONFIG,
        weights,
        num_blocks=1024,
        block_size=16,
        kv_type=kv_type,
        context=CONFIG.context,
        device=device,
    )


def with_graphs(
    decoder: TorchDecoder, record: Callable[..., Callable[[], torch.Tensor]] | None
) -> TorchDecoder:
    with torch.inference_mode():
        decoder.graphs = DecodeGraphs(
            decoder.compute,
            CONFIG.windows,
            max_rows=MAX_RUNNING,
            context=CONFIG.context,
            num_blocks=1024,
            block_size=16,
            device=decoder.kv.storage.device,
            record=record,
        )
    return decoder


def milliseconds(decoder: TorchDecoder, rows: int) -> float:
    """Of a decode step, everything included, from the fifth on."""
    engine = Engine(decoder)
    said: dict[int, Answer] = {}
    for row in range(rows):
        engine.submit(Request(0, [1 + row, 2, 3], 60))
    for _ in range(5):
        engine.step(said)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        engine.step(said)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 20


def on_gpu(name: str) -> int:
    device = torch.device("cuda")
    weights = make_weights(name == "4-bit", torch.bfloat16)
    before, began = torch.cuda.memory_allocated(), time.perf_counter()
    graphs = with_graphs(make_decoder(weights, device, torch.bfloat16), None)
    taken = time.perf_counter() - began
    assert graphs.graphs is not None
    padded = with_graphs(make_decoder(weights, device, torch.bfloat16), lambda run: run)
    assert padded.graphs is not None
    launched = make_decoder(weights, device, torch.bfloat16)
    num_graphs, all_graphs = graphs.graphs.num_graphs, padded.graphs.num_graphs
    print(f"{name}: {num_graphs} of {all_graphs} graphs in {taken:.1f} s, "
          f"{(torch.cuda.memory_allocated() - before) / 1e6:.0f} MB with three decoders")  # fmt: skip
    asked = requests(CONFIG.context)
    replayed = answers(graphs, asked)
    failed = num_graphs < all_graphs
    for other, decoder, tie in (("padded", padded, 0.0), ("launched", launched, TIE)):
        wrong = compare(replayed, answers(decoder, asked), tie)
        failed += wrong > 0
        verdict = f"{wrong} of {len(asked)} answers differ" if wrong else "the same tokens"
        print(f"{name}: graphs against {other}: {verdict}")
    for rows in (1, 4, MAX_RUNNING):
        mine, theirs = milliseconds(graphs, rows), milliseconds(launched, rows)
        print(f"{name}: a step of {rows} decodes: graphs {mine:.2f} ms, launched {theirs:.2f} ms")
    return int(failed)


def dry_run() -> int:
    print("No GPU, no graphs: requests together against each alone, in the CPU forms.")
    failed = 0
    for is_packed in (False, True):
        decoder = make_decoder(make_weights(is_packed, torch.float32), torch.device("cpu"), torch.float32)
        asked = requests(400)
        with torch.inference_mode():
            wrong = compare(answers(decoder, asked), answers(decoder, asked, alone=True), 1e-3)
        failed += wrong
        print(f"{'4-bit' if is_packed else 'float32'}: {'ok' if not wrong else f'{wrong} answers differ'}")
    return int(failed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="check what can be without a GPU")
    if parser.parse_args().dry_run:
        return dry_run()
    if not torch.cuda.is_available():
        print("torch sees no CUDA GPU here: use --dry-run.", file=sys.stderr)
        return 2
    failed = 0
    for name, num_wrong, why in each(("bf16", "4-bit"), on_gpu, limit_s=LIMIT_S):
        failed += bool(why or num_wrong)
        if why:
            print(f"{name}: {why}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
