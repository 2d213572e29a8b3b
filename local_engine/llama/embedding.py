"""An embedding model: many inputs packed into one pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgecloud.errors import BadRequest

from .context import Context
from .library import lib
from .model import Model


class EmbeddingContext:
    """An embedding model's context: token ids in, one pooled vector each out (not normalised)."""

    def __init__(self, model: Model, *, n_ctx: int = 2048, num_sequences: int = 16, threads: int = 1) -> None:
        n_ctx = min(n_ctx, model.n_ctx_train) if model.n_ctx_train else n_ctx
        self.model = model
        self.max_tokens = n_ctx
        self.n_embd = model.n_embd
        # Attention that looks both ways needs the whole input in one physical batch.
        open_context = partial(
            Context,
            model,
            n_ctx=n_ctx,
            num_sequences=num_sequences,
            n_batch=n_ctx,
            n_ubatch=n_ctx,
            threads=threads,
            embeddings=True,
        )
        self._context = open_context()
        self.pooling = int(lib.llama_pooling_type(self._context.handle))
        if self.pooling == lib.LLAMA_POOLING_TYPE_NONE:
            self._context.close()
            self._context = open_context(pooling="mean")
            self.pooling = lib.LLAMA_POOLING_TYPE_MEAN
        self._num_sequences = num_sequences

    def embed(self, inputs: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Vectors [len(inputs), n_embd]; inputs are packed into as few passes as fit. Each needs
        1..`max_tokens` tokens.
        """
        vectors = np.zeros((len(inputs), self.n_embd), np.float32)
        batch = self._context.batch
        at = 0
        while at < len(inputs):
            batch.clear()
            first = at
            while at < len(inputs) and at - first < self._num_sequences and len(inputs[at]) <= batch.room:
                batch.add(inputs[at], 0, at - first, last=True, every=True)
                at += 1
            if at == first:
                raise BadRequest(
                    f"An input is {len(inputs[at])} tokens and the embedder takes {self.max_tokens}.",
                    param="input",
                )
            self._context.clear()
            if (code := self._context.decode()) != 0:
                raise RuntimeError(f"embedding {batch.size} tokens returned {code}")
            for row in range(first, at):
                pointer = lib.llama_get_embeddings_seq(self._context.handle, row - first)
                vectors[row] = np.ctypeslib.as_array(pointer, shape=(self.n_embd,))
        return vectors

    def close(self) -> None:
        self._context.close()
