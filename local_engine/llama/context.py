"""KV memory and compute buffers: what decodes a batch, and forgets, shares, saves and restores sequences."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgecloud.errors import ModelLoadError

from .batch import Batch
from .library import complaining, lib, load_reason, messages
from .model import Model

KV_TYPES = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "f32": lib.GGML_TYPE_F32}
POOLINGS = {
    "mean": lib.LLAMA_POOLING_TYPE_MEAN,
    "cls": lib.LLAMA_POOLING_TYPE_CLS,
    "last": lib.LLAMA_POOLING_TYPE_LAST,
}
MAX_SEQUENCES = 256

NO_KV_SLOT = 1
ABORTED = 2
INVALID_BATCH = -1

Logits = NDArray[np.float32]


class Context:
    """KV memory of `n_ctx` cells shared by up to `num_sequences` sequences, and the compute buffers to fill
    it.

    `batch` is the only batch; `num_outputs` is how many of its tokens may ask for logits (llama.cpp reserves
    a whole row of the vocabulary for each). Raises `ModelLoadError` when the memory can't be had.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        num_sequences: int = 1,
        n_batch: int = 512,
        n_ubatch: int = 512,
        num_outputs: int = 0,
        threads: int = 1,
        kv_type: str = "f16",
        embeddings: bool = False,
        pooling: str | None = None,
    ) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_seq_max = num_sequences
        params.n_batch = n_batch
        params.n_ubatch = min(n_batch, n_ubatch)
        params.n_outputs_max = min(n_batch, num_outputs)
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV_TYPES[kv_type]
        params.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if kv_type == "q8_0" else lib.LLAMA_FLASH_ATTN_TYPE_AUTO
        )
        params.kv_unified = True
        params.no_perf = True
        params.embeddings = embeddings
        if pooling is not None:
            params.pooling_type = POOLINGS[pooling]
        with complaining:
            messages.complaints.clear()
            self._context = lib.llama_init_from_model(model.handle, params)
            complaints = list(messages.complaints)
        if not self._context:
            reason = load_reason(complaints)
            raise ModelLoadError(f"{model.path.name}: a context of {n_ctx} tokens can't be made: {reason}.")
        self.model = model
        self.n_ctx: int = lib.llama_n_ctx(self._context)
        self.num_sequences = num_sequences
        self.batch = Batch(n_batch, num_sequences)
        self._memory = lib.llama_get_memory(self._context)

    @property
    def handle(self) -> Any:
        return self._context

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = None

    def decode(self) -> int:
        """Run the batch. 0 is done, `NO_KV_SLOT` and `INVALID_BATCH` changed nothing, `ABORTED` and below -1
        leave a part behind.
        """
        self.batch.raw.n_tokens = self.batch.size
        code: int = lib.llama_decode(self._context, self.batch.raw)
        return code

    def logits(self, index: int) -> Logits:
        """Raw logits of batch position `index`, float32 [n_vocab]: a view that the next `decode` changes."""
        pointer = lib.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise IndexError(f"batch position {index} of {self.batch.size} has no logits")
        return np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab,))

    def set_threads(self, threads: int) -> None:
        lib.llama_set_n_threads(self._context, threads, threads)

    def clear(self) -> None:
        """Forget every sequence. A model that only encodes has no memory, and nothing to forget."""
        if self._memory:
            lib.llama_memory_clear(self._memory, False)

    def remove(self, seq_id: int, start: int = 0, end: int = -1) -> bool:
        """Forget positions [start, end) of a sequence (-1: to its end). False: this model can only forget
        whole sequences.
        """
        return bool(lib.llama_memory_seq_rm(self._memory, seq_id, start, end))

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` see positions [0, end) of `source` too; the cells are shared, not copied."""
        lib.llama_memory_seq_cp(self._memory, source, target, 0, end)

    def first_position(self, seq_id: int) -> int:
        """The smallest position held for a sequence, -1 if none; above 0 only under sliding windows."""
        return int(lib.llama_memory_seq_pos_min(self._memory, seq_id))

    def last_position(self, seq_id: int) -> int:
        return int(lib.llama_memory_seq_pos_max(self._memory, seq_id))

    def state_size(self, seq_id: int) -> int:
        """Bytes that `save` would return."""
        return int(lib.llama_state_seq_get_size(self._context, seq_id))

    def save(self, seq_id: int) -> bytearray:
        """The state of one sequence, for `restore` into a context of the same model and KV type."""
        data = bytearray(self.state_size(seq_id))
        buffer = (ctypes.c_uint8 * len(data)).from_buffer(data)
        written = lib.llama_state_seq_get_data(self._context, buffer, len(data), seq_id)
        del buffer
        return data[:written] if written != len(data) else data

    def restore(self, seq_id: int, state: bytearray) -> bool:
        """Put a saved state into an empty sequence; False if there is no room or it does not fit this
        context.
        """
        buffer = (ctypes.c_uint8 * len(state)).from_buffer(state)
        return bool(lib.llama_state_seq_set_data(self._context, buffer, len(state), seq_id))

    def logits_of(self, tokens: Sequence[int], *, start: int = 0, chunk: int = 32) -> Iterator[Logits]:
        """Decode `tokens` from scratch and yield the raw logits after each from `start` on (views, copy what
        you keep).

        The context needs `num_outputs >= chunk`.
        """
        self.clear()
        for at in range(0, len(tokens), chunk):
            self.batch.clear()
            self.batch.add(tokens[at : at + chunk], at, 0, last=True, every=True)
            if (code := self.decode()) != 0:
                raise RuntimeError(f"decode of tokens {at}..{at + self.batch.size} returned {code}")
            for index in range(max(0, start - at), self.batch.size):
                yield self.logits(index)
