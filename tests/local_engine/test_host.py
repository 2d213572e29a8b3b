"""Many models in one memory budget: who is loaded, who has to go, who has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from edgecloud.errors import ModelLoadError
from edgecloud.local_engine.host import ModelHost
from edgecloud.models import ModelFile
from edgecloud.settings import LocalSettings, Settings
from edgecloud.types import ChatRequest, Done, Sampling, TextDelta

pytestmark = pytest.mark.model

REQUEST = ChatRequest(prompt="The sky is", max_tokens=3, sampling=Sampling(temperature=0.0))


@pytest.fixture
def copies(model_file: ModelFile, tmp_path: Path) -> tuple[ModelFile, ModelFile, ModelFile]:
    """Three models, as far as the host can tell."""

    def link(name: str) -> ModelFile:
        path = tmp_path / f"{name}.gguf"
        path.symlink_to(model_file.path)
        return ModelFile(name, path, "chat", model_file.size)

    return link("first"), link("second"), link("third")


@pytest.fixture
async def make_host() -> AsyncIterator[Callable[[int], ModelHost]]:
    hosts: list[ModelHost] = []

    def make(budget_mb: int) -> ModelHost:
        local = LocalSettings(ctx_size=256, threads=1, parallel=2, memory_budget_mb=budget_mb)
        hosts.append(ModelHost(Settings(local=local)))
        return hosts[-1]

    yield make
    for host in hosts:
        await host.aclose()


async def answer(host: ModelHost, file: ModelFile) -> str:
    events = [event async for event in host.engine(file).generate(REQUEST)]
    assert isinstance(events[-1], Done)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def names(host: ModelHost) -> list[str]:
    return [engine.file.name for engine in host.loaded]


async def test_a_file_has_one_engine(
    make_host: Callable[[int], ModelHost], copies: tuple[ModelFile, ...]
) -> None:
    host = make_host(0)
    assert host.engine(copies[0]) is host.engine(copies[0])
    assert host.engine(copies[0]) is not host.engine(copies[1])
    assert host.loaded == ()


async def test_models_share_the_budget_and_the_least_recently_used_goes(
    make_host: Callable[[int], ModelHost], copies: tuple[ModelFile, ...]
) -> None:
    host = make_host(500)
    first, second, third = copies
    await answer(host, first)
    await answer(host, second)
    assert names(host) == ["first", "second"]
    await answer(host, first)
    await answer(host, third)
    assert names(host) == ["first", "third"]


async def test_who_answers_is_not_unloaded_and_who_needs_the_room_waits(
    make_host: Callable[[int], ModelHost], copies: tuple[ModelFile, ...]
) -> None:
    host = make_host(250)
    first, second, _ = copies
    events = host.engine(first).generate(ChatRequest(prompt="Once", max_tokens=200, ignore_eos=True))
    await anext(events)
    waiting = asyncio.create_task(answer(host, second))
    for _ in range(5):
        await anext(events)
    assert not waiting.done()
    assert names(host) == ["first"]
    await events.aclose()
    assert await waiting
    assert names(host) == ["second"]


async def test_both_can_ask_at_once_and_both_are_answered(
    make_host: Callable[[int], ModelHost], copies: tuple[ModelFile, ...]
) -> None:
    host = make_host(250)
    texts = await asyncio.gather(*(answer(host, file) for file in (*copies, *copies)))
    assert len(set(texts)) == 1
    assert len(host.loaded) == 1


async def test_what_can_never_fit_is_refused_with_numbers(
    make_host: Callable[[int], ModelHost], copies: tuple[ModelFile, ...]
) -> None:
    host = make_host(64)
    with pytest.raises(ModelLoadError, match=r"\d+ MB.*\d+ MB"):
        await answer(host, copies[0])
    assert host.loaded == ()
