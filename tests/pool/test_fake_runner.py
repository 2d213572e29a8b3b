"""The fake runner says what it would say alone, whatever the scheduler does to it."""

from __future__ import annotations

from edgecloud.pool.config import PoolConfig
from edgecloud.pool.plan import Drawn
from edgecloud.pool.runner import Drawing
from edgecloud.pool.scheduler import Scheduler
from edgecloud.pool.sequence import Job
from tests.support.fake_runner import FakeRunner, expected


def test_two_that_do_not_fit_together_say_what_they_say_alone() -> None:
    scheduler = Scheduler(PoolConfig(8, 4, num_host_blocks=8, token_budget=4, max_chunk=4, max_running=4))
    runner = FakeRunner(8, 4, 8)
    prompts = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 6, 7)]
    said: dict[int, list[int]] = {}
    for prompt in prompts:
        request_id = scheduler.submit(Job(prompt, max_tokens=14), 0.0)
        runner.begin(request_id, prompt, Drawing())
        said[request_id] = []
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        if plan.is_empty:
            continue
        drawn = {
            sequence_id: tuple(Drawn(draw.tokens, draw.stop) for draw in draws)
            for sequence_id, draws in runner.execute(plan).draws.items()
        }
        for progress in scheduler.commit(plan, drawn, 0.0).progress:
            said[progress.request_id] += progress.tokens
        scheduler.check()
    assert list(said.values()) == [expected(prompt, 14) for prompt in prompts]
