"""A runner without a model: it moves real contents through paged memory and draws tokens from all it reads.

A slot holds (position, token). The next token is a hash of every slot that the block table names, so a block
reused too early, a copy not made, a swap that missed or a wrong prefix hit changes the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from zlib import crc32

from edgecloud.pool.plan import Drawn, Item, StepPlan
from edgecloud.pool.prefix import chain_hash
from edgecloud.pool.scheduler import Committed, Scheduler
from edgecloud.pool.sequence import Ended, Job

VOCABULARY = 97
Slot = tuple[int, int]
EMPTY: Slot = (-1, -1)


def next_token(context: Iterable[Slot], choice: int) -> int:
    return (
        crc32(array("q", [number for slot in context for number in slot] + [choice]).tobytes()) % VOCABULARY
    )


def never(token: int) -> bool:
    return False


def answer(job: Job, choice: int = 0, stops: Callable[[int], bool] = never) -> list[int]:
    """What the fake model says to a job that runs alone, with no scheduler at all."""
    tokens = list(job.prompt)
    output: list[int] = []
    while len(output) < job.max_tokens and not (output and stops(output[-1])):
        output.append(next_token(enumerate(tokens), choice))
        tokens.append(output[-1])
    return output


def weak_hash(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    """Three hashes for all the texts there are."""
    return bytes([sum(tokens) % 3])


strong_hash = chain_hash


class FakeRunner:
    def __init__(self, scheduler: Scheduler, stops: Callable[[int], bool] = never) -> None:
        self.scheduler = scheduler
        self.stops = stops
        self.block_size = scheduler.config.block_size
        self.device = [EMPTY] * (scheduler.config.num_blocks * self.block_size)
        self.host = [EMPTY] * (scheduler.config.num_host_blocks * self.block_size)
        self.outputs: dict[tuple[int, int], list[int]] = {}
        self.ended: dict[int, Ended] = {}

    def execute(self, plan: StepPlan) -> dict[int, tuple[Drawn, ...]]:
        """The steps in the order that `plan.py` lays down."""
        for copy in plan.swap_outs:
            self._write(self.host, copy.target, self._read(self.device, copy.source))
        for copy in plan.swap_ins:
            self._write(self.device, copy.target, self._read(self.host, copy.source))
        contents = [self._read(self.device, copy.source) for copy in plan.copies]
        for copy, content in zip(plan.copies, contents, strict=True):
            self._write(self.device, copy.target, content)
        assert len(plan.slots) == len(set(plan.slots)), "two tokens of one step go to the same slot"
        for slot, position, token in zip(plan.slots, plan.positions, plan.tokens, strict=True):
            self.device[slot] = (position, token)
        drawn = {}
        for index, item in enumerate(plan.items):
            tokens = plan.tokens[plan.offsets[index] : plan.offsets[index + 1]]
            drawn[item.sequence_id] = tuple(
                self._draw(item, item.choice + sample, tokens) for sample in range(item.num_samples)
            )
        return drawn

    def take(self, committed: Committed) -> None:
        for request_id, choice, tokens, _ in committed.progress:
            assert request_id not in self.ended
            self.outputs.setdefault((request_id, choice), []).extend(tokens)
        self.end(committed.ended)

    def end(self, ended: Iterable[Ended]) -> None:
        for end in ended:
            assert end.request_id not in self.ended, "a request ended twice"
            self.ended[end.request_id] = end

    def step(self, now: float = 0.0) -> StepPlan:
        plan = self.scheduler.schedule(now)
        self.end(plan.ended)
        if not plan.is_empty:
            self.take(self.scheduler.commit(plan, self.execute(plan), now))
        self.scheduler.check()
        return plan

    def run(self, now: float = 0.0, max_steps: int = 2000) -> list[StepPlan]:
        """Until nothing is left to do."""
        plans = []
        while self.scheduler.has_work:
            assert len(plans) < max_steps, "no end in sight"
            plans.append(self.step(now))
        return plans

    def _draw(self, item: Item, choice: int, tokens: list[int]) -> Drawn:
        """The next token, and one more for each draft that turned out to be right."""
        end = item.start + item.num_tokens
        context = [
            self.device[
                item.table[position // self.block_size] * self.block_size + position % self.block_size
            ]
            for position in range(end)
        ]
        accepted: list[int] = []
        for draft in [*tokens[item.num_tokens - item.num_drafts :], None]:
            known = end - item.num_drafts + len(accepted)
            accepted.append(next_token(context[:known], choice))
            if self.stops(accepted[-1]):
                return Drawn(tuple(accepted), stop=True)
            if accepted[-1] != draft:
                break
        return Drawn(tuple(accepted))

    def _read(self, memory: list[Slot], block: int) -> list[Slot]:
        return memory[block * self.block_size : (block + 1) * self.block_size]

    def _write(self, memory: list[Slot], block: int, content: list[Slot]) -> None:
        memory[block * self.block_size : (block + 1) * self.block_size] = content
