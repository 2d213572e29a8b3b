"""A runner without a model: it moves real contents through paged memory and draws tokens from all it reads.

A slot holds (position, token), and the next token is a hash of every slot that the block table names: a block
reused too early, a copy not made, a swap that missed or a wrong prefix hit changes the text.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Iterable
from zlib import crc32

from edgecloud.errors import EdgeCloudError, EngineFailure
from edgecloud.pool.plan import Item, StepPlan
from edgecloud.pool.runner import Draw, Drawing, RunnerFacts, StepOutput
from edgecloud.vocabulary import TokenScore

VOCABULARY = 257
Slot = tuple[int, int]
EMPTY: Slot = (-1, -1)
NextToken = Callable[[list[Slot], int], int]


def hashed(context: Iterable[Slot], choice: int) -> int:
    """A printable ASCII byte, made of everything that came before."""
    numbers = array("q", [number for slot in context for number in slot] + [choice])
    return 32 + crc32(numbers.tobytes()) % 95


def expected(prompt: Iterable[int], num_tokens: int, choice: int = 0) -> list[int]:
    """What the runner says to a prompt alone, with no scheduler at all."""
    tokens = list(prompt)
    num_prompt = len(tokens)
    for _ in range(num_tokens):
        tokens.append(hashed(enumerate(tokens), choice))
    return tokens[num_prompt:]


class FakeRunner:
    """Implements `edgecloud.pool.runner.Runner`; a token is a byte, 256 ends an answer.

    `next_token` scripts what is said, of the slots read and the choice. `step_s` is slept in each step.
    `before_step` is called with every plan and may raise, which is a fault inside the step; requests named in
    `broken` come back as failed.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 4,
        num_host_blocks: int = 0,
        *,
        context: int = 4096,
        next_token: NextToken = hashed,
        step_s: float = 0.0,
        before_step: Callable[[StepPlan], None] = lambda plan: None,
    ) -> None:
        self.facts = RunnerFacts(
            "fake", "cpu", VOCABULARY, context, block_size, block_size * 16, "slots", num_parameters=1234
        )
        self.next_token = next_token
        self.step_s = step_s
        self.before_step = before_step
        self.broken: set[int] = set()
        self.num_steps = 0
        self.requests: dict[int, tuple[tuple[int, ...], Drawing]] = {}
        self.closed = False
        self._device = [EMPTY] * (num_blocks * block_size)
        self._host = [EMPTY] * (num_host_blocks * block_size)
        self._num_scored: dict[int, int] = {}

    def begin(self, request_id: int, prompt: tuple[int, ...], drawing: Drawing) -> None:
        assert request_id not in self.requests, "a request began twice"
        self.requests[request_id] = (prompt, drawing)

    def end(self, request_id: int) -> None:
        self.requests.pop(request_id, None)
        self._num_scored.pop(request_id, None)

    def close(self) -> None:
        self.closed = True

    def execute(self, plan: StepPlan) -> StepOutput:
        """The steps in the order that `plan.py` lays down."""
        self.num_steps += 1
        self.before_step(plan)
        if self.step_s:
            time.sleep(self.step_s)
        for copy in plan.swap_outs:
            self._write(self._host, copy.target, self._read(self._device, copy.source))
        for copy in plan.swap_ins:
            self._write(self._device, copy.target, self._read(self._host, copy.source))
        contents = [self._read(self._device, copy.source) for copy in plan.copies]
        for copy, content in zip(plan.copies, contents, strict=True):
            self._write(self._device, copy.target, content)
        assert len(plan.slots) == len(set(plan.slots)), "two tokens of one step go to the same slot"
        for slot, position, token in zip(plan.slots, plan.positions, plan.tokens, strict=True):
            self._device[slot] = (position, token)
        draws: dict[int, tuple[Draw, ...]] = {}
        scores: dict[int, tuple[TokenScore, ...]] = {}
        failed: dict[int, EdgeCloudError] = {}
        for index, item in enumerate(plan.items):
            prompt, drawing = self.requests[item.request_id]
            if item.request_id in self.broken:
                failed[item.request_id] = EngineFailure("The model's output was not a number.")
                continue
            if drawing.score_prompt:
                scores[item.request_id] = self._score(item, prompt)
            tokens = plan.tokens[plan.offsets[index] : plan.offsets[index + 1]]
            draws[item.sequence_id] = tuple(
                self._draw(item, item.choice + sample, tokens, drawing) for sample in range(item.num_samples)
            )
        return StepOutput(draws, scores, failed)

    def _draw(self, item: Item, choice: int, tokens: list[int], drawing: Drawing) -> Draw:
        """The next token, and one more for each draft that turned out to be right."""
        end = item.start + item.num_tokens
        context = self._slots(item, end)
        drawn: list[int] = []
        for draft in [*tokens[item.num_tokens - item.num_drafts :], None]:
            drawn.append(self.next_token(context[: end - item.num_drafts + len(drawn)], choice))
            if drawn[-1] != draft or drawn[-1] in drawing.stop_ids:
                break
        logprob = -math.log(VOCABULARY)
        scores = () if drawing.logprobs is None else tuple(TokenScore(token, logprob) for token in drawn)
        return Draw(tuple(drawn), drawn[-1] in drawing.stop_ids, scores)

    def _score(self, item: Item, prompt: tuple[int, ...]) -> tuple[TokenScore, ...]:
        first = max(item.start + 1, self._num_scored.get(item.request_id, 1))
        last = min(item.start + item.num_tokens + 1, len(prompt))
        self._num_scored[item.request_id] = max(first, last)
        return tuple(TokenScore(token, -math.log(VOCABULARY)) for token in prompt[first:last])

    def _slots(self, item: Item, end: int) -> list[Slot]:
        size = self.facts.block_size
        return [self._device[item.table[at // size] * size + at % size] for at in range(end)]

    def _read(self, memory: list[Slot], block: int) -> list[Slot]:
        size = self.facts.block_size
        return memory[block * size : (block + 1) * size]

    def _write(self, memory: list[Slot], block: int, content: list[Slot]) -> None:
        size = self.facts.block_size
        memory[block * size : (block + 1) * size] = content
