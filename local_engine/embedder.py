"""Embedders on this machine: the starter (MiniLM through onnxruntime), and GGUF models through llama.cpp.

Both work in a thread of their own, on one core, apart from the chat engine: neither waits for the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgecloud.errors import BadRequest, ContextLengthExceeded, ModelLoadError, Unavailable
from edgecloud.models import ModelFile, check_minilm
from edgecloud.settings import Settings
from edgecloud.types import EmbedResult

from .embed_worker import EmbedWorker, Rows, Vectors

if TYPE_CHECKING:
    from edgecloud.engine import Embedder

# Tokenizing less text than this takes under a millisecond or two, so it is done where it is asked for.
INLINE_CHARACTERS = 8192


def open_embedder(file: ModelFile, settings: Settings) -> Embedder:
    """Load an embedding model; blocks for tenths of a second or more. Raises `ModelLoadError`."""
    if file.path.suffix == ".onnx":
        return MiniLM(file.path)
    return GgufEmbedder(file.path, name=file.name, gpu_layers=settings.local.gpu_layers)


class MiniLM:
    """all-MiniLM-L6-v2, int8: 384 dimensions, mean pooling, English; text beyond 256 tokens is not read.

    A vector doesn't depend on what else is in its pass. Raises `ModelLoadError` for a file other than the
    packaged one.
    """

    name = "minilm"
    dimensions = 384
    MAX_TOKENS = 256
    _CLS, _SEP = 101, 102

    def __init__(self, path: Path) -> None:
        # Since 1.32 onnxruntime's builds report to their maker, unless they are told not to before they load.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        import onnxruntime
        from tokenizers import Tokenizer

        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelLoadError(f"The starter embedder can't be read: {error.strerror}.") from None
        check_minilm(content)
        options = onnxruntime.SessionOptions()
        # Two threads are slower than one here, and spinning ones would take the chat engine's cores.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        # One token more than is read tells what has to be cut.
        self._tokenizer: Tokenizer = _wordpiece(self.MAX_TOKENS + 1)
        self._vocab_size: int = self._tokenizer.get_vocab_size()
        self.fingerprint = hashlib.sha256(content + b"mean 256").hexdigest()[:32]
        self._worker = EmbedWorker(self._pass, name=self.name)

    @property
    def num_passes(self) -> int:
        return self._worker.num_passes

    @property
    def pass_s(self) -> float:
        return self._worker.pass_s

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> EmbedResult:
        """Unit vectors, in order. Raises `BadRequest` for an empty input or an id outside the vocabulary."""
        found = await _tokenized(inputs, self._encode, self._wrap, self._vocab_size)
        most = self.MAX_TOKENS
        rows = [row if len(row) <= most else [*row[: most - 1], self._SEP] for row in found]
        num_truncated = sum(len(row) > most for row in found)
        return _result(await self._worker.submit(rows), self.name, rows, num_truncated)

    async def aclose(self) -> None:
        await self._worker.aclose()

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def _wrap(self, ids: tuple[int, ...]) -> list[int]:
        inner = [token for token in ids if token not in (self._CLS, self._SEP)]
        return [self._CLS, *inner[: self.MAX_TOKENS - 1], self._SEP]

    def _pass(self, rows: Rows) -> Vectors:
        longest = max(len(row) for row in rows)
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
            mask[index, : len(row)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden,) = self._session.run(None, feeds)
        pooled: Vectors = np.einsum("rtd,rt->rd", hidden, mask.astype(np.float32)) / mask.sum(
            1, keepdims=True
        )
        return pooled


class GgufEmbedder:
    """Any GGUF model, with its own pooling or else the mean. Inputs longer than its context are refused."""

    def __init__(self, path: Path, *, name: str, gpu_layers: int = -1) -> None:
        from .llama import EmbeddingContext, Model

        self.name = name
        self._model = Model(path, gpu_layers=gpu_layers)
        self._context = EmbeddingContext(self._model)
        self.dimensions = self._context.n_embd
        self.fingerprint = f"{self._model.fingerprint()}-{self._context.pooling}"
        self._worker = EmbedWorker(self._context.embed, name=name)
        self._tokenizing = threading.Lock()
        self._closed = False

    @property
    def num_passes(self) -> int:
        return self._worker.num_passes

    @property
    def pass_s(self) -> float:
        return self._worker.pass_s

    async def embed(self, inputs: Sequence[str | tuple[int, ...]]) -> EmbedResult:
        """Unit vectors, in order. Raises `BadRequest` for an empty input or an id outside the vocabulary, and
        `ContextLengthExceeded` for one that is too long."""
        rows = await _tokenized(inputs, self._encode, list, self._model.n_vocab)
        for row in rows:
            if len(row) > self._context.max_tokens:
                raise ContextLengthExceeded(len(row), self._context.max_tokens, param="input")
        return _result(await self._worker.submit(rows), self.name, rows)

    async def aclose(self) -> None:
        await self._worker.aclose()
        with self._tokenizing:
            self._closed = True
        self._context.close()
        self._model.close()

    def _encode(self, texts: list[str]) -> list[list[int]]:
        # A freed vocabulary ends the process, so nobody may be reading it when it goes.
        with self._tokenizing:
            if self._closed:
                raise Unavailable("The embedder is shutting down.")
            return [self._model.tokenize(text, add_special=True) for text in texts]


async def _tokenized(
    inputs: Sequence[str | tuple[int, ...]],
    encode: Callable[[list[str]], list[list[int]]],
    wrap: Callable[[tuple[int, ...]], list[int]],
    vocab_size: int,
) -> list[list[int]]:
    """One row of token ids per input, none of them empty."""
    if not inputs:
        raise BadRequest("There is nothing to embed: input is empty.", param="input")
    for index, each in enumerate(inputs):
        if len(each) == 0:
            raise BadRequest(f"Input {index} is empty.", param="input")
        if isinstance(each, str):
            if any("\ud800" <= character <= "\udfff" for character in each):
                raise BadRequest(f"Input {index} holds half a character (a lone surrogate).", param="input")
        elif not all(0 <= token < vocab_size for token in each):
            raise BadRequest(
                f"Input {index} has a token id outside the embedder's vocabulary of {vocab_size}: send text.",
                param="input",
            )
    texts = [each for each in inputs if isinstance(each, str)]
    inline = sum(len(text) for text in texts) <= INLINE_CHARACTERS
    encoded = iter(encode(texts) if inline else await asyncio.to_thread(encode, texts))
    rows = [next(encoded) if isinstance(each, str) else wrap(each) for each in inputs]
    for index, row in enumerate(rows):
        if not row:
            raise BadRequest(f"Input {index} has no tokens in it.", param="input")
    return rows


def _result(vectors: Vectors, name: str, rows: list[list[int]], num_truncated: int = 0) -> EmbedResult:
    return EmbedResult(
        vectors=tuple(tuple(vector) for vector in vectors.tolist()),
        model=name,
        prompt_tokens=sum(len(row) for row in rows),
        num_truncated=num_truncated,
    )


def _wordpiece(max_tokens: int) -> Any:
    """BERT's uncased WordPiece over the vocabulary that lies in `data/`."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing

    words = resources.files(__package__).joinpath("data", "vocab.txt").read_text(encoding="utf-8").split("\n")
    vocab = {word: index for index, word in enumerate(words) if word}
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    tokenizer.enable_truncation(max_tokens)
    return tokenizer
