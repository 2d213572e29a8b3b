"""A scheduler and a real runner, stepped by hand: what is asked of them and what they answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from edgecloud.pool.config import PoolConfig
from edgecloud.pool.loading import load_runner, plan_model
from edgecloud.pool.models.torch_decoder import TorchDecoder
from edgecloud.pool.plan import Drawn, StepPlan
from edgecloud.pool.runner import Drawing, Runner
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job
from edgecloud.pool.torch_runner import TorchRunner
from edgecloud.vocabulary import TokenScore


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)


class Pool:
    """`answers` are by request and choice, `prompt_scores`, `failed` and `cached` by request."""

    def __init__(self, runner: Runner, config: PoolConfig) -> None:
        self.runner = runner
        self.scheduler = Scheduler(config)
        self.answers: dict[tuple[int, int], Answer] = {}
        self.prompt_scores: dict[int, list[TokenScore]] = {}
        self.failed: dict[int, Exception] = {}
        self.cached: dict[int, int] = {}
        self.plans: list[StepPlan] = []

    def submit(
        self,
        prompt: list[int],
        max_tokens: int,
        drawing: Drawing | None = None,
        *,
        n: int = 1,
        priority: int = 0,
    ) -> int:
        drawing = drawing or Drawing()
        job = Job(tuple(prompt), max_tokens, n=n, priority=priority, read_prefix=not drawing.score_prompt)
        request_id = self.scheduler.submit(job, 0.0)
        self.runner.begin(request_id, job.prompt, drawing)
        self.prompt_scores[request_id] = []
        for choice in range(n):
            self.answers[request_id, choice] = Answer()
        return request_id

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule(0.0)
        if plan.is_empty:
            return plan
        self.plans.append(plan)
        output = self.runner.execute(plan)
        for request_id, error in output.failed.items():
            self.failed[request_id] = error
            self.scheduler.abort(request_id, 0.0)
        for item in plan.items:
            for number, draw in enumerate(output.draws.get(item.sequence_id, ())):
                self.answers[item.request_id, item.choice + number].scores += draw.scores
        for request_id, scores in output.scores.items():
            self.prompt_scores[request_id] += scores
        drawn = {
            sequence_id: tuple(Drawn(draw.tokens, draw.stop) for draw in draws)
            for sequence_id, draws in output.draws.items()
        }
        committed = self.scheduler.commit(plan, drawn, 0.0)
        for progress in committed.progress:
            self.answers[progress.request_id, progress.choice].tokens += progress.tokens
        for ended in committed.ended:
            self.cached[ended.request_id] = ended.num_cached
            self.runner.end(ended.request_id)
        self.scheduler.check()
        return plan

    def run(self) -> None:
        """Until nothing is left to do."""
        for _ in range(5000):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("no end in sight")

    def answer(self, prompt: list[int], max_tokens: int, drawing: Drawing | None = None) -> Answer:
        """One request, alone."""
        request_id = self.submit(prompt, max_tokens, drawing)
        self.run()
        return self.answers[request_id, 0]


def make_config(**changes: Any) -> PoolConfig:
    sizes = {
        "num_blocks": 64,
        "block_size": 16,
        "num_host_blocks": 64,
        "context": 1024,
        "token_budget": 512,
        "max_chunk": 512,
        "max_running": 16,
    }
    return PoolConfig(**{**sizes, **changes})


def make_runner(path: Path, config: PoolConfig, *, threads: int = 1, **plan: Any) -> TorchRunner:
    return load_runner(plan_model(path, device="cpu", **plan), config, threads=threads)


def make_torch_runner(path: Path, config: PoolConfig, **plan: Any) -> TorchRunner:
    """The same over torch's operations, as on a machine without a compiler."""
    runner = make_runner(path, config, **plan)
    model = plan_model(path, device="cpu", **plan)
    from edgecloud.pool.models.files import open_weights
    from edgecloud.pool.models.matrices import MatrixReader

    weights = MatrixReader(open_weights(path, model.decoder), model.decoder, model.weights).read_all()
    decoder = TorchDecoder(
        model.decoder,
        weights,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        kv_type=runner.decoder.kv.dtype,
        context=config.context,
        device=torch.device("cpu"),
    )
    return TorchRunner(decoder, runner.facts, config.num_host_blocks)
