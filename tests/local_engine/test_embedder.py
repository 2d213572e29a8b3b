"""The embedders: right vectors, few passes for many callers, clear refusals."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from edgecloud.engine import Embedder
from edgecloud.errors import (
    BadRequest,
    ContextLengthExceeded,
    EdgeCloudError,
    EngineFailure,
    ModelLoadError,
    Unavailable,
)
from edgecloud.local_engine.embed_worker import EmbedWorker, Rows, Vectors
from edgecloud.local_engine.embedder import GgufEmbedder, MiniLM, open_embedder
from edgecloud.models import resolve
from edgecloud.settings import Settings
from tests.ground.gguf_files import write_bert


@pytest.fixture(scope="module")
def bert_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert") / "tiny-bert.gguf")


@pytest.fixture
async def minilm() -> AsyncIterator[MiniLM]:
    embedder = MiniLM(resolve("minilm", Settings()).path)
    yield embedder
    await embedder.aclose()


@pytest.fixture
async def bert(bert_path: Path) -> AsyncIterator[GgufEmbedder]:
    embedder = GgufEmbedder(bert_path, name="tiny-bert")
    yield embedder
    await embedder.aclose()


@pytest.fixture(params=["minilm", "tiny-bert"])
async def embedder(request: pytest.FixtureRequest, bert_path: Path) -> AsyncIterator[Embedder]:
    name = request.param if request.param == "minilm" else str(bert_path)
    embedder = open_embedder(resolve(name, Settings()), Settings())
    yield embedder
    await embedder.aclose()


def cosine(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return float(np.dot(a, b))


# ---------------------------------------------------------------------------------------------------- vectors


async def test_near_meanings_are_near(minilm: MiniLM) -> None:
    question, same, other = (
        await minilm.embed(
            ["What is the capital of France?", "Which city is France's capital?", "How to fry an egg"]
        )
    ).vectors

    assert cosine(question, same) > 0.8
    assert cosine(question, other) < 0.3
    assert minilm.dimensions == len(question) == 384


async def test_a_vector_has_length_one_and_does_not_depend_on_its_company(embedder: Embedder) -> None:
    texts = ["a b", "the cat", "c d e f " * 4, "the dog a", "b"]
    together = await embedder.embed(texts)
    alone = [await embedder.embed([text]) for text in texts]

    for vector, single in zip(together.vectors, alone, strict=True):
        assert math.isclose(cosine(vector, vector), 1.0, abs_tol=1e-5)
        assert np.allclose(vector, single.vectors[0], atol=1e-5)
    assert together.prompt_tokens == sum(single.prompt_tokens for single in alone)
    assert together.model == embedder.name


async def test_the_starter_pools_by_the_mean_of_its_own_tokens(minilm: MiniLM) -> None:
    ids = (101, 1996, 3007, 1997, 2605, 102)
    from_text = await minilm.embed(["The capital of France"])
    from_ids = await minilm.embed([ids])
    without_marks = await minilm.embed([ids[1:-1]])

    assert from_text.vectors == from_ids.vectors == without_marks.vectors
    assert from_text.prompt_tokens == 6


async def test_text_beyond_256_tokens_is_not_read(minilm: MiniLM) -> None:
    long, longer = (
        await minilm.embed(["word " * 254]),
        await minilm.embed(["word " * 254 + "different end " * 9000]),
    )

    assert long.vectors == longer.vectors
    assert longer.prompt_tokens == 256
    assert (long.num_truncated, longer.num_truncated) == (0, 1)
    ids = await minilm.embed([(2773,) * 9000, (2773,) * 254, (2773,) * 255])
    assert (ids.prompt_tokens, ids.num_truncated) == (3 * 256, 2)


async def test_user_text_cannot_spell_control_tokens(minilm: MiniLM) -> None:
    # [ cl ##s ] [ sep ] [ pad ] between the two that are added
    assert (await minilm.embed(["[CLS] [SEP] [PAD]"])).prompt_tokens == 10 + 2


async def test_odd_texts_have_vectors_too(minilm: MiniLM) -> None:
    texts = [" ", "\x00", "\n\t", "🤷‍♀️", "ａｂｃ", "a" * 5000, "日本語のテキスト", "\ufeff", "é" * 300]

    result = await minilm.embed(texts)
    assert all(math.isclose(cosine(vector, vector), 1.0, abs_tol=1e-5) for vector in result.vectors)


async def test_a_model_without_pooling_is_pooled_by_the_mean(bert_path: Path) -> None:
    chat = GgufEmbedder(resolve("smollm2", Settings(), tuned=False).path, name="smollm2")
    try:
        (vector,) = (await chat.embed(["hello"])).vectors
    finally:
        await chat.aclose()
    assert len(vector) == chat.dimensions == 576


def test_fingerprints_tell_models_apart(bert_path: Path, tmp_path: Path) -> None:
    settings = Settings()
    prints = []
    for path in (bert_path, write_bert(tmp_path / "same.gguf"), write_bert(tmp_path / "other.gguf", seed=1)):
        opened = open_embedder(resolve(str(path), settings), settings)
        prints.append(opened.fingerprint)
        asyncio.run(opened.aclose())
    assert prints[0] == prints[1] != prints[2]


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], "nothing to embed"),
        ([""], "Input 0 is empty"),
        (["a", ()], "Input 1 is empty"),
        ([(10_000_000,)], "outside the embedder's vocabulary"),
        ([(-1,)], "outside the embedder's vocabulary"),
        (["a \ud83d b"], "lone surrogate"),
    ],
)
async def test_bad_input_is_refused(
    embedder: Embedder, inputs: list[str | tuple[int, ...]], words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        await embedder.embed(inputs)
    assert caught.value.param == "input"


async def test_input_longer_than_the_models_context_is_refused(bert: GgufEmbedder) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        await bert.embed(["cat " * 100])
    assert caught.value.extra == {"n_prompt_tokens": 102, "n_ctx": 64}


def test_a_file_other_than_the_packaged_one_is_not_loaded(tmp_path: Path) -> None:
    path = resolve("minilm", Settings()).path
    changed = bytearray(path.read_bytes())
    changed[1000] ^= 1
    (tmp_path / "model.onnx").write_bytes(changed)

    with pytest.raises(ModelLoadError, match="wrong checksum"):
        MiniLM(tmp_path / "model.onnx")
    with pytest.raises(ModelLoadError, match="can't be read"):
        MiniLM(tmp_path / "gone.onnx")


async def test_after_closing_it_says_so(bert_path: Path) -> None:
    embedder = GgufEmbedder(bert_path, name="tiny-bert")
    await embedder.aclose()

    with pytest.raises(Unavailable):
        await embedder.embed(["a"])


# --------------------------------------------------------------------------------------------------- batching


async def test_ten_callers_at_once_become_few_passes(embedder: MiniLM | GgufEmbedder) -> None:
    texts = [f"the cat {chr(ord('a') + index)}" for index in range(10)]

    results = await asyncio.gather(*(embedder.embed([text]) for text in texts))

    assert embedder.num_passes <= 3
    assert len({result.vectors for result in results}) == 10
    assert results[4].vectors[0] == pytest.approx((await embedder.embed([texts[4]])).vectors[0], abs=1e-5)


class Recorder:
    """Stands in for a model: the vector of a row is its first token and 1; every pass waits for `gate`."""

    def __init__(self) -> None:
        self.passes: list[list[list[int]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.on_pass: Callable[[Rows], None] = lambda rows: None

    def __call__(self, rows: Rows) -> Vectors:
        self.passes.append([list(row) for row in rows])
        self.gate.wait(10)
        self.on_pass(rows)
        return np.array([[row[0], 1.0] for row in rows], np.float32)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def worker(recorder: Recorder) -> AsyncIterator[EmbedWorker]:
    worker = EmbedWorker(recorder, name="test", max_rows=8)
    yield worker
    recorder.gate.set()
    await worker.aclose()


async def busy(worker: EmbedWorker, recorder: Recorder) -> asyncio.Task[Vectors]:
    """Occupy the worker with one pass that ends when the gate opens."""
    recorder.gate.clear()
    task = asyncio.create_task(worker.submit([[99]]))
    while not recorder.passes:  # noqa: ASYNC110 - filled by a thread
        await asyncio.sleep(0.001)
    return task


async def test_what_arrives_during_a_pass_shares_the_next(worker: EmbedWorker, recorder: Recorder) -> None:
    first = await busy(worker, recorder)
    others = [asyncio.create_task(worker.submit([[index]])) for index in range(6)]
    await asyncio.sleep(0.01)
    recorder.gate.set()
    await asyncio.gather(first, *others)

    assert recorder.passes == [[[99]], [[0], [1], [2], [3], [4], [5]]]


async def test_a_long_list_does_not_hold_up_a_short_one(worker: EmbedWorker, recorder: Recorder) -> None:
    first = await busy(worker, recorder)
    long = asyncio.create_task(worker.submit([[1]] * 100))
    await asyncio.sleep(0)
    short = asyncio.create_task(worker.submit([[2]]))
    await asyncio.sleep(0.01)
    recorder.gate.set()
    await asyncio.gather(first, long, short)

    assert [2] in recorder.passes[1]
    assert all(len(rows) <= 8 for rows in recorder.passes)


async def test_rows_of_unlike_length_are_not_padded_to_one_another(
    worker: EmbedWorker, recorder: Recorder
) -> None:
    result = await worker.submit([[1] * 200, [2], [3] * 150, [4] * 20])

    assert [[len(row) for row in rows] for rows in recorder.passes] == [[1, 20], [150, 200]]
    assert np.allclose(result[:, 0] / result[:, 1], [1, 2, 3, 4])


async def test_a_failed_pass_fails_its_own_callers_only(worker: EmbedWorker, recorder: Recorder) -> None:
    def fail(rows: Rows) -> None:
        if rows[0][0] == 7:
            raise RuntimeError("no")

    recorder.on_pass = fail
    bad = asyncio.create_task(worker.submit([[7]]))
    good = asyncio.create_task(worker.submit([[8] * 100]))
    results = await asyncio.gather(bad, good, return_exceptions=True)

    assert isinstance(results[0], EngineFailure)
    assert isinstance(results[1], np.ndarray)
    assert (await worker.submit([[8]])).shape == (1, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_nan_never_leaves(value: float) -> None:
    worker = EmbedWorker(lambda rows: np.full((len(rows), 3), value, np.float32), name="nan")
    with pytest.raises(EngineFailure, match="NaN"):
        await worker.submit([[1]])
    await worker.aclose()


async def test_callers_that_have_gone_cost_nothing(worker: EmbedWorker, recorder: Recorder) -> None:
    first = await busy(worker, recorder)
    gone = [asyncio.create_task(worker.submit([[index]] * 50)) for index in range(5)]
    await asyncio.sleep(0.01)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    recorder.gate.set()
    await first
    await worker.submit([[6]])

    assert recorder.passes == [[[99]], [[6]]]


async def test_closing_answers_everyone_who_waits(recorder: Recorder) -> None:
    worker = EmbedWorker(recorder, name="closing")
    running = await busy(worker, recorder)
    waiting = asyncio.create_task(worker.submit([[1]]))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(worker.aclose())
    await asyncio.sleep(0.01)
    recorder.gate.set()
    await closing

    assert (await running).shape == (1, 2)
    with pytest.raises(EdgeCloudError, match="shutting down"):
        await waiting


async def test_the_event_loop_is_free_while_a_pass_runs(worker: EmbedWorker, recorder: Recorder) -> None:
    running = await busy(worker, recorder)
    num_turns = 0
    for _ in range(100):
        await asyncio.sleep(0)
        num_turns += 1
    assert not running.done()
    assert num_turns == 100
    recorder.gate.set()
    await running
