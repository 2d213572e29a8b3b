"""Prefixes that outlive the process: a chat goes on where it was, with the same logits, or from the start."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgecloud.cache import prefix_key
from edgecloud.cache.prefix import PrefixStore
from edgecloud.local_engine import batcher as batching
from edgecloud.local_engine import saved as saving
from edgecloud.local_engine.batcher import Batcher
from edgecloud.local_engine.engine import LocalEngine
from edgecloud.local_engine.host import ModelHost
from edgecloud.local_engine.llama import Context, Model
from edgecloud.local_engine.parked import Parked
from edgecloud.local_engine.saved import SavedPrefixes
from edgecloud.models import ModelFile
from edgecloud.settings import LocalSettings, Settings
from edgecloud.types import ChatRequest, Done, Notice, Sampling, Usage

from .conftest import collect, job, words

MakeBatcher = Callable[..., Batcher]
CHAT = "chat-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prefixes.db"


@pytest.fixture
def make_saved(path: Path) -> Iterator[Callable[[], SavedPrefixes]]:
    """What a process has; closing it is the process's end."""
    opened: list[SavedPrefixes] = []

    def make(limit_bytes: int = 1 << 30) -> SavedPrefixes:
        opened.append(SavedPrefixes(lambda: PrefixStore(path, limit_bytes=limit_bytes)))
        return opened[-1]

    yield make
    for saved in opened:
        saved.close()


MakeSaved = Callable[..., SavedPrefixes]
IS_AWAITED = saving.Fetch.is_awaited


@pytest.fixture(autouse=True)
def whatever_this_machine_s_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is worth saving, and worth waiting for."""
    monkeypatch.setattr(prefix_key, "LEAST_S", 0.0)
    monkeypatch.setattr(prefix_key, "DISK_BYTES_S", 1e15)
    monkeypatch.setattr(saving.Fetch, "is_awaited", property(lambda fetch: not fetch.is_over))


def count(path: Path, table: str = "states") -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    connection.close()
    return int(found)


def wait_for_a_state(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not (path.exists() and count(path, "state_owners")) and time.monotonic() < deadline:
        time.sleep(0.02)


async def written(saved: SavedPrefixes) -> None:
    """All that was given to the writing thread is done."""
    await asyncio.gather(*(asyncio.wrap_future(each) for each in list(saved._writing)))


async def answer(
    make_batcher: MakeBatcher,
    saved: SavedPrefixes,
    model: Model,
    prompt: list[int],
    chat_id: str | None = CHAT,
) -> tuple[list[int], int]:
    """The tokens of one answer by a fresh process, and how many prompt tokens it computed."""
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    tokens = (await collect(batcher.submit(job(prompt, 8, chat_id=chat_id)))).tokens[0]
    computed = batcher.stats().prefill_tokens
    await asyncio.to_thread(batcher.close)
    await asyncio.to_thread(saved.close)
    return tokens, computed


@pytest.mark.model
async def test_after_a_restart_only_the_tail_is_computed_and_the_answer_is_the_same(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved, path: Path
) -> None:
    # cases: E13
    prompt = words(model, 150)
    first, computed = await answer(make_batcher, make_saved(), model, prompt)
    assert (computed, count(path)) == (150, 1)

    again, computed = await answer(make_batcher, make_saved(), model, prompt)
    assert (again, computed) == (first, 1)

    longer = [*prompt, *first, *words(model, 20, start=9)]
    _, computed = await answer(make_batcher, make_saved(), model, longer)
    # The last token of an answer is drawn and never computed.
    assert computed == 21


@pytest.mark.model
async def test_a_prefix_that_memory_holds_is_not_read_from_disk(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved
) -> None:
    saved = make_saved()
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    prompt = words(model, 130)
    await collect(batcher.submit(job(prompt, 2, chat_id=CHAT)))
    reads = 0

    def no_read(*_: object) -> None:
        nonlocal reads
        reads += 1

    saved.read = no_read  # type: ignore[method-assign]
    await collect(batcher.submit(job([*prompt, *words(model, 30, start=5)], 2, chat_id=CHAT)))
    assert reads == 0
    assert batcher.stats().cached_tokens >= 129


@pytest.mark.model
def test_logits_after_the_disk_are_the_same_to_the_last_bit(
    model: Model, make_context: Callable[..., Context], path: Path
) -> None:
    prompt = words(model, 200)
    context = make_context(num_sequences=2)
    kind = SavedPrefixes(lambda: store).of_model("smollm2", model.path, "f16").kind

    def last_logits(seq_id: int) -> np.ndarray:
        context.batch.clear()
        index = context.batch.add_one(prompt[-1], len(prompt) - 1, seq_id)
        assert context.decode() == 0
        return context.logits(index).copy()

    context.batch.clear()
    context.batch.add(prompt[:-1], 0, 0, last=True)
    assert context.decode() == 0
    state = context.save(0)
    expected = last_logits(0)

    store = PrefixStore(path, limit_bytes=1 << 30)
    assert store.save(kind, prompt[:-1], state, CHAT) is not None
    match = store.find(kind, prompt)
    assert match is not None
    found = store.read(kind, match.number)
    store.close()
    assert found is not None
    tokens, restored = found
    assert (tokens, restored) == (prompt[:-1], state)
    assert context.restore(1, restored)
    np.testing.assert_array_equal(last_logits(1), expected)


@pytest.mark.model
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE chunks SET data = zeroblob(length(data))",
        "UPDATE states SET kind = zeroblob(16)",
    ],
)
async def test_a_damaged_state_is_computed_again(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved, path: Path, statement: str
) -> None:
    prompt = words(model, 130)
    first, _ = await answer(make_batcher, make_saved(), model, prompt)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()

    again, computed = await answer(make_batcher, make_saved(), model, prompt)
    assert (again, computed) == (first, 130 if "chunks" in statement else 1)
    # What was computed again was saved again.
    again, computed = await answer(make_batcher, make_saved(), model, prompt)
    assert (again, computed) == (first, 1)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("wrong", ["short", "garbage"])
async def test_a_state_that_is_whole_but_not_of_these_tokens_is_never_used(
    model: Model, make_batcher: MakeBatcher, make_context: Callable[..., Context], make_saved: MakeSaved,
    path: Path, wrong: str,
) -> None:  # fmt: skip
    prompt = words(model, 130)
    context = make_context()
    context.batch.clear()
    context.batch.add(prompt[:100], 0, 0, last=True)
    assert context.decode() == 0
    state = context.save(0) if wrong == "short" else bytearray(b"not a state" * 1000)
    kind = make_saved().of_model("smollm2", model.path, "f16").kind
    store = PrefixStore(path, limit_bytes=1 << 30)
    assert store.save(kind, prompt, state, CHAT) is not None

    # Nothing is saved for it, so nothing takes the bad one's place.
    tokens, computed = await answer(make_batcher, make_saved(), model, prompt, chat_id=None)
    assert computed == 130
    assert store.entries() == []
    store.close()
    assert (tokens, 130) == await answer(make_batcher, make_saved(), model, prompt)


@pytest.mark.model
async def test_states_of_another_kv_type_are_left_alone(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved
) -> None:
    prompt = words(model, 130)
    await answer(make_batcher, make_saved(), model, prompt)
    saved = make_saved()
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "q8_0"))
    await collect(batcher.submit(job(prompt, 2, chat_id=CHAT)))
    assert batcher.stats().cached_tokens == 0


@pytest.mark.model
async def test_a_chat_that_contains_all_of_a_state_owns_it_and_one_that_shares_a_part_does_not(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved, path: Path
) -> None:
    prompt = words(model, 130)
    first, _ = await answer(make_batcher, make_saved(), model, prompt)
    saved = make_saved()
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    other, fork = [*prompt[:100], *prompt[:40]], [*prompt, *first, *prompt[:40]]
    await collect(batcher.submit(job(other, 2, chat_id="chat-2")))
    await collect(batcher.submit(job(fork, 2, chat_id="chat-3")))
    await written(saved)

    store = PrefixStore(path, limit_bytes=1 << 30)
    assert [(entry.hits, entry.chats) for entry in store.entries()] == [(2, (CHAT, "chat-3"))]
    store.close()


@pytest.mark.model
async def test_only_chats_are_saved(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved, path: Path
) -> None:
    saved = make_saved()
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    await collect(batcher.submit(job(words(model, 130), 2)))
    await asyncio.to_thread(batcher.close)
    await asyncio.to_thread(saved.close)
    assert count(path) == 0


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("prefix_bytes", [0, 10_000_000], ids=["no room", "room for one"])
async def test_what_leaves_memory_goes_to_disk_and_comes_back_from_there(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved, prefix_bytes: int
) -> None:
    saved = make_saved()
    states = saved.of_model("smollm2", model.path, "f16")
    batcher = make_batcher(cells=2048, prefix_bytes=prefix_bytes, saved=states)
    prompts = [words(model, 300), words(model, 300, start=900)]
    for number, prompt in enumerate(prompts):
        await collect(batcher.submit(job(prompt, 2, chat_id=f"chat-{number}")))
    await written(saved)
    assert batcher.stats().cached_tokens == 0

    await asyncio.gather(*(collect(batcher.submit(job(prompt, 2, n=2))) for prompt in prompts))
    assert batcher.stats().cached_tokens == 2 * 299
    assert batcher.stats().prefill_tokens == 2 * 300 + 4


@pytest.mark.model
async def test_what_is_parked_is_saved_when_nothing_is_to_do(
    model: Model,
    make_batcher: MakeBatcher,
    make_saved: MakeSaved,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batching, "IDLE_S", 0.01)
    saved = make_saved()
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    await collect(batcher.submit(job(words(model, 300), 2, chat_id=CHAT)))
    await asyncio.to_thread(wait_for_a_state, path)
    steps = batcher.stats().steps
    await asyncio.sleep(0.1)
    assert (batcher.stats().steps, count(path)) == (steps, 1)


@pytest.mark.model
async def test_running_answers_go_on_while_a_state_is_read(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved
) -> None:
    prompt = words(model, 130)
    await answer(make_batcher, make_saved(), model, prompt)
    saved = make_saved()
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    real_read = saved.read

    def slow_read(work: Callable[[PrefixStore], None], done: Callable[[], None]) -> None:
        def wait_first(store: PrefixStore) -> None:
            asyncio.run_coroutine_threadsafe(ready.wait(), loop).result(30)
            work(store)

        real_read(wait_first, done)

    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    running = asyncio.create_task(collect(batcher.submit(job(words(model, 20, start=3), 12))))
    saved.read = slow_read  # type: ignore[method-assign]
    waiting = asyncio.create_task(collect(batcher.submit(job(prompt, 2))))
    await running
    assert not waiting.done()
    assert batcher.stats().cached_tokens == 0
    ready.set()
    await waiting
    assert batcher.stats().cached_tokens == 129


@pytest.mark.model
async def test_a_disk_that_is_slower_than_computing_is_not_waited_for(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving.Fetch, "is_awaited", IS_AWAITED)
    saved = make_saved()
    saved.read = lambda work, done: None  # type: ignore[method-assign]
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    await collect(batcher.submit(job(words(model, 100), 2)))
    assert batcher.stats().prefill_tokens == 100


@pytest.mark.model
async def test_who_is_cancelled_while_a_state_is_read_leaves_nothing_behind(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved
) -> None:
    saved = make_saved()
    saved.read = lambda work, done: None  # type: ignore[method-assign]
    batcher = make_batcher(cells=2048, saved=saved.of_model("smollm2", model.path, "f16"))
    ticket = batcher.submit(job(words(model, 100), 2))
    await asyncio.sleep(0.01)
    ticket.cancel()
    await collect(ticket)
    assert batcher.stats().waiting == 0
    assert batcher.is_idle


# -------------------------------------------------------------------------------------------- without a model


def parked(size: int, chat_id: str | None = CHAT) -> Parked:
    return Parked(list(range(2000)), bytearray(size), chat_id)


def test_the_queue_is_bounded_and_who_does_not_fit_may_come_again(
    make_saved: MakeSaved, monkeypatch: pytest.MonkeyPatch, model_path: Path
) -> None:
    monkeypatch.setattr(saving, "MOST_QUEUED_BYTES", 1000)
    saved = make_saved()
    states = saved.of_model("smollm2", model_path, "f16")
    too_much = parked(1001)
    assert not states.offer(too_much, 0.004)
    assert not too_much.is_saved
    assert states.offer(parked(1000), 0.004)
    assert not states.offer(parked(10, chat_id=None), 0.004)


def test_the_end_waits_for_what_is_written_but_not_for_ever(
    make_saved: MakeSaved, path: Path, monkeypatch: pytest.MonkeyPatch, model_path: Path
) -> None:
    saved = make_saved()
    saved.of_model("smollm2", model_path, "f16").offer(parked(1000), 0.004)
    saved.close()
    assert count(path) == 1

    monkeypatch.setattr(saving, "CLOSE_S", 0.0)
    saved = make_saved()
    late = parked(1000)
    late.tokens = [5, *late.tokens]
    monkeypatch.setattr(PrefixStore, "save", lambda *_, keep_going, **__: None if keep_going() else 1 / 0)
    saved.of_model("smollm2", model_path, "f16").offer(late, 0.004)
    saved.close()
    assert not saved.write(lambda store: None)


def test_a_file_that_cannot_be_used_is_told_once_and_left_alone(tmp_path: Path, model_path: Path) -> None:
    (tmp_path / "file").write_text("")
    opened = 0

    def open_store() -> PrefixStore:
        nonlocal opened
        opened += 1
        return PrefixStore(tmp_path / "file" / "prefixes.db", limit_bytes=1 << 30)

    saved = SavedPrefixes(open_store)
    states = saved.of_model("smollm2", model_path, "f16")
    assert saved.complaint() == ""
    for _ in range(3):
        states.offer(parked(1000), 0.004)
    saved.close()
    assert opened == 1
    assert "prefixes.db" in saved.complaint()
    assert saved.complaint() == ""


# ------------------------------------------------------------------------------------------------- the engine


async def ask(engine: LocalEngine, prompt: str, **options: object) -> tuple[Usage, list[str]]:
    request = ChatRequest(
        prompt=prompt, max_tokens=4, sampling=Sampling(temperature=0.0), ignore_eos=True, **options
    )  # type: ignore[arg-type]
    events = [event async for event in engine.generate(request)]
    assert isinstance(events[-1], Done)
    return events[-1].usage, [event.text for event in events if isinstance(event, Notice)]


@pytest.fixture
async def make_host(make_saved: MakeSaved) -> AsyncIterator[Callable[..., ModelHost]]:
    hosts: list[ModelHost] = []

    def make(saved: SavedPrefixes | None = None) -> ModelHost:
        local = LocalSettings(ctx_size=2048, threads=1, parallel=2)
        hosts.append(ModelHost(Settings(local=local), saved or make_saved()))
        return hosts[-1]

    yield make
    for host in hosts:
        await host.aclose()


@pytest.mark.model
async def test_a_chat_goes_on_after_a_restart_and_the_usage_says_so(
    make_host: Callable[..., ModelHost], model_file: ModelFile
) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 15
    host = make_host()
    usage, _ = await ask(host.engine(model_file), text, chat_id=CHAT)
    assert usage.cached_tokens == 0
    await host.aclose()

    usage, notices = await ask(make_host().engine(model_file), text + "And then?", chat_id=CHAT)
    assert usage.cached_tokens >= 120
    assert usage.prompt_tokens - usage.cached_tokens < 10
    assert notices == []


@pytest.mark.model
@pytest.mark.parametrize("options", [{"journal": False, "chat_id": CHAT}, {"chat_id": None}])
async def test_what_no_history_keeps_is_not_saved(
    make_host: Callable[..., ModelHost], model_file: ModelFile, path: Path, options: dict[str, object]
) -> None:
    host = make_host()
    await ask(host.engine(model_file), "The quick brown fox jumps over the lazy dog. " * 15, **options)
    await host.aclose()
    assert count(path) == 0


@pytest.mark.model
async def test_trouble_with_the_file_costs_no_answer_and_is_told_once(
    make_host: Callable[..., ModelHost], model_file: ModelFile, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    bad = SavedPrefixes(lambda: PrefixStore(tmp_path / "file" / "prefixes.db", limit_bytes=1 << 30))
    engine = make_host(bad).engine(model_file)
    texts = [f"{number} foxes jump over lazy dogs. " * 12 for number in range(3)]
    told = [notice for text in texts for notice in (await ask(engine, text, chat_id=CHAT))[1]]
    assert len(told) == 1
    assert "prefixes.db" in told[0]


@pytest.mark.model
async def test_what_went_to_disk_and_came_back_is_counted(
    model: Model, make_batcher: MakeBatcher, make_saved: MakeSaved, path: Path
) -> None:
    prompt = words(model, 150)
    one, two = make_saved(), make_saved()
    before = make_batcher(cells=2048, saved=one.of_model("smollm2", model.path, "f16"))
    await collect(before.submit(job(prompt, 8, chat_id=CHAT)))
    await asyncio.to_thread(before.close)
    await asyncio.to_thread(one.close)
    after = make_batcher(cells=2048, saved=two.of_model("smollm2", model.path, "f16"))
    await collect(after.submit(job(prompt, 8, chat_id=CHAT)))

    (size,) = sqlite3.connect(path).execute("SELECT sum(bytes) FROM states").fetchone()
    assert (before.stats().saved, before.stats().saved_bytes) == (1, size)
    assert (after.stats().restored, after.stats().restored_bytes) == (1, size)
    assert (before.stats().restored, after.stats().saved) == (0, 0)
