"""The thin, typed wrapper around llama.cpp's low-level binding. Nothing else in the house imports
`llama_cpp`.

Objects here own their C counterpart and free it in `close`. A `Context` belongs to one thread at a time; a
`Model` (weights and vocabulary) may be read from any thread. Errors that a file or a request can cause are
`EdgeCloudError`s, everything else is a return code or a bug.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as _binding
import numpy as np
from llama_cpp.llama_grammar import json_schema_to_gbnf
from numpy.typing import NDArray

from edgecloud import gguf
from edgecloud.errors import BadRequest, ModelLoadError

# The binding's own annotations describe ctypes objects that mypy can't follow.
lib: Any = _binding

log = logging.getLogger("edgecloud.llama")

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


# ---------------------------------------------------------------------------------------- what llama.cpp says


class _Messages:
    """Catches llama.cpp's log lines: they go to our logger, and the last complaints are kept for error
    sentences.
    """

    LEVELS: Mapping[int, int] = {2: logging.WARNING, 3: logging.ERROR}

    def __init__(self) -> None:
        self.complaints: deque[str] = deque(maxlen=16)
        self.listener: Callable[[str], None] | None = None
        self.callback = lib.llama_log_callback(self._receive)
        lib.llama_log_set(self.callback, None)
        lib.llama_backend_init()

    def _receive(self, level: int, text: bytes | None, _user_data: object) -> None:
        line = (text or b"").decode(errors="replace").strip()
        if not line or line.strip(".") == "":
            return
        severity = self.LEVELS.get(level, logging.DEBUG)
        if severity == logging.ERROR:
            self.complaints.append(line)
        if self.listener is not None:
            self.listener(line)
        # A failed load or grammar becomes an error with its own sentence, so nothing here is louder than
        # debug.
        log.debug("%s", line)


_messages = _Messages()
# llama.cpp's log has no owner, so what complains must do so alone to be understood.
_complaining = threading.Lock()


def supports_gpu() -> bool:
    """Whether this build of the binding can offload layers to a GPU."""
    return bool(lib.llama_supports_gpu_offload())


# ------------------------------------------------------------------------------------------------------ model


class Model:
    """Weights and vocabulary of one GGUF file (its first shard, if it is split).

    Raises `ModelLoadError` with one sentence when the file can't be loaded.
    """

    def __init__(self, path: Path, *, gpu_layers: int = -1, vocab_only: bool = False) -> None:
        self.path = path
        # llama.cpp trusts what it reads: a damaged header must not get that far.
        gguf.read_info(path)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = vocab_only
        with _complaining:
            _messages.complaints.clear()
            self._model = lib.llama_model_load_from_file(os.fsencode(path), params)
            complaints = list(_messages.complaints)
        if not self._model:
            raise ModelLoadError(f"{path.name} can't be loaded: {_load_reason(complaints)}.")
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self._model)
        self.n_embd: int = lib.llama_model_n_embd(self._model)
        self.n_layer: int = lib.llama_model_n_layer(self._model)
        self.size: int = lib.llama_model_size(self._model)
        self.has_decoder = bool(lib.llama_model_has_decoder(self._model))
        # Recurrent state holds one position only: it can't be cut back to a prefix.
        self.can_share_prefixes = not (
            lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model)
        )
        self.bos: int = lib.llama_vocab_bos(self._vocab)
        self.eos: int = lib.llama_vocab_eos(self._vocab)
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self.eog_ids = frozenset(t for t in range(self.n_vocab) if lib.llama_vocab_is_eog(self._vocab, t))
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}

    @property
    def handle(self) -> Any:
        return self._model

    @property
    def vocab(self) -> Any:
        return self._vocab

    def close(self) -> None:
        if self._model:
            lib.llama_model_free(self._model)
            self._model = None

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of `text`; `parse_special` reads spelled control tokens as such."""
        data = text.encode("utf-8", errors="replace")
        capacity = len(data) + 8
        buffer = (lib.llama_token * capacity)()
        count = lib.llama_tokenize(self._vocab, data, len(data), buffer, capacity, add_special, parse_special)
        if count < 0:
            buffer = (lib.llama_token * -count)()
            count = lib.llama_tokenize(
                self._vocab, data, len(data), buffer, -count, add_special, parse_special
            )
        return buffer[:count]  # type: ignore[no-any-return]

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """Bytes of one token, perhaps half a character; control tokens are empty unless `special`."""
        cache = self._special_pieces if special else self._pieces
        piece = cache.get(token_id)
        if piece is None:
            buffer = ctypes.create_string_buffer(256)
            size = lib.llama_token_to_piece(self._vocab, token_id, buffer, len(buffer), 0, special)
            if size < 0:
                buffer = ctypes.create_string_buffer(-size)
                size = lib.llama_token_to_piece(self._vocab, token_id, buffer, len(buffer), 0, special)
            piece = cache[token_id] = buffer.raw[:size]
        return piece

    def detokenize(self, ids: Sequence[int], *, special: bool = True) -> bytes:
        """Bytes of a whole sequence, with the vocabulary's rule about leading spaces applied."""
        tokens = (lib.llama_token * len(ids))(*ids)
        capacity = 8 * len(ids) + 64
        buffer = ctypes.create_string_buffer(capacity)
        size = lib.llama_detokenize(self._vocab, tokens, len(ids), buffer, capacity, False, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = lib.llama_detokenize(self._vocab, tokens, len(ids), buffer, -size, False, special)
        return buffer.raw[:size]

    def is_eog(self, token_id: int) -> bool:
        return token_id in self.eog_ids

    def control_tokens(self) -> frozenset[str]:
        """How the vocabulary spells its control tokens: what user text must not be able to say."""
        texts = (
            lib.llama_vocab_get_text(self._vocab, t)
            for t in range(self.n_vocab)
            if lib.llama_vocab_is_control(self._vocab, t)
        )
        return frozenset(text.decode(errors="replace") for text in texts if text)

    def token_text(self, token_id: int) -> str:
        """How the vocabulary spells a token; empty for ids below 0 (the vocabulary has no such token)."""
        if token_id < 0:
            return ""
        text: bytes | None = lib.llama_vocab_get_text(self._vocab, token_id)
        return (text or b"").decode(errors="replace")

    def chat_template(self, name: str | None = None) -> str:
        """The chat template in the file, or '' if it has none."""
        text: bytes | None = lib.llama_model_chat_template(self._model, name.encode() if name else None)
        return text.decode(errors="replace") if text else ""

    def metadata(self, key: str) -> str | None:
        """One metadata value as text."""
        buffer = ctypes.create_string_buffer(4096)
        size = lib.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if size >= 0 else None

    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def fingerprint(self) -> str:
        """Names the file's content; changes when it does."""
        return gguf.fingerprint(self.path)


def _load_reason(complaints: list[str]) -> str:
    text = "; ".join(complaints)
    if "unknown model architecture" in text:
        name = text.split("architecture:")[-1].split(";")[0].strip()
        return f"llama.cpp does not know its architecture ({name})"
    if "not within the file bounds" in text or "corrupted" in text or "failed to read" in text:
        return "it is truncated or damaged, download it again"
    if complaints:
        # The first complaint is the cause, the later ones its echoes; a function name in front means nothing
        # to a person.
        return re.sub(r"^\w+: (error loading model: )?", "", complaints[0]).rstrip(".")
    return "llama.cpp gave no reason"


# ---------------------------------------------------------------------------------------------------- context


class Batch:
    """The tokens of one step, written straight into the arrays that llama.cpp reads."""

    def __init__(self, capacity: int, num_sequences: int) -> None:
        self.capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._num_ids = np.ones(capacity, np.int32)
        self._output = np.zeros(capacity, np.int8)
        # llama.cpp wants a pointer to each token's sequence ids: ours all point into one table of single ids.
        self._ids = np.arange(num_sequences, dtype=np.int32)
        self._id_pointer = np.zeros(capacity, np.uintp)
        self._id_address = self._ids.ctypes.data
        int32_p = ctypes.POINTER(ctypes.c_int32)
        self.raw = lib.llama_batch(
            0,
            self._token.ctypes.data_as(int32_p),
            None,
            self._position.ctypes.data_as(int32_p),
            self._num_ids.ctypes.data_as(int32_p),
            self._id_pointer.ctypes.data_as(ctypes.POINTER(int32_p)),
            self._output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        self.size = 0

    @property
    def room(self) -> int:
        return self.capacity - self.size

    def clear(self) -> None:
        self.size = 0

    def add_one(self, token: int, position: int, seq_id: int) -> int:
        """Add one token with logits; returns its index in the batch."""
        at = self.size
        self._token[at] = token
        self._position[at] = position
        self._id_pointer[at] = self._id_address + 4 * seq_id
        self._output[at] = 1
        self.size = at + 1
        return at

    def add(
        self, tokens: Sequence[int], position: int, seq_id: int, *, last: bool, every: bool = False
    ) -> int:
        """Add a run of tokens of one sequence, with logits for the `last` one or `every` one; returns the
        last one's index.
        """
        start, end = self.size, self.size + len(tokens)
        self._token[start:end] = tokens
        self._position[start:end] = np.arange(position, position + len(tokens), dtype=np.int32)
        self._id_pointer[start:end] = self._id_address + 4 * seq_id
        self._output[start:end] = every
        if last:
            self._output[end - 1] = 1
        self.size = end
        return end - 1


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
        with _complaining:
            _messages.complaints.clear()
            self._context = lib.llama_init_from_model(model.handle, params)
            complaints = list(_messages.complaints)
        if not self._context:
            reason = _load_reason(complaints)
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
        """Forget every sequence."""
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


class EmbeddingContext:
    """An embedding model's context: token ids in, one pooled vector each out (not normalised)."""

    def __init__(self, model: Model, *, n_ctx: int = 2048, num_sequences: int = 16, threads: int = 1) -> None:
        n_ctx = min(n_ctx, model.n_ctx_train) if model.n_ctx_train else n_ctx
        self.model = model
        self.max_tokens = n_ctx
        self.n_embd = model.n_embd
        # Attention that looks both ways needs the whole input in one physical batch.
        self._context = Context(
            model,
            n_ctx=n_ctx,
            num_sequences=num_sequences,
            n_batch=n_ctx,
            n_ubatch=n_ctx,
            threads=threads,
            embeddings=True,
        )
        self.pooling = int(lib.llama_pooling_type(self._context.handle))
        if self.pooling == lib.LLAMA_POOLING_TYPE_NONE:
            self._context.close()
            self._context = Context(
                model,
                n_ctx=n_ctx,
                num_sequences=num_sequences,
                n_batch=n_ctx,
                n_ubatch=n_ctx,
                threads=threads,
                embeddings=True,
                pooling="mean",
            )
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
            if self._context._memory:
                self._context.clear()
            if (code := self._context.decode()) != 0:
                raise RuntimeError(f"embedding {batch.size} tokens returned {code}")
            for row in range(first, at):
                pointer = lib.llama_get_embeddings_seq(self._context.handle, row - first)
                vectors[row] = np.ctypeslib.as_array(pointer, shape=(self.n_embd,))
        return vectors

    def close(self) -> None:
        self._context.close()


# --------------------------------------------------------------------------------------------------- sampling


class Chain:
    """A chain of llama.cpp samplers: what is added first is applied first; the last one picks."""

    def __init__(self, model: Model) -> None:
        params = lib.llama_sampler_chain_default_params()
        self._model = model
        self._chain = lib.llama_sampler_chain_init(params)

    def logit_bias(self, bias: Mapping[int, float]) -> None:
        entries = (lib.llama_logit_bias * len(bias))(*bias.items())
        self._add(lib.llama_sampler_init_logit_bias(self._model.n_vocab, len(bias), entries))

    def penalties(
        self, window: int, repeat: float, frequency: float, presence: float, history: Sequence[int] = ()
    ) -> None:
        """Penalties over the last `window` tokens; `history` counts as drawn already."""
        sampler = lib.llama_sampler_init_penalties(self._model.n_vocab, window, repeat, frequency, presence)
        for token in history:
            lib.llama_sampler_accept(sampler, token)
        self._add(sampler)

    def top_k(self, k: int) -> None:
        self._add(lib.llama_sampler_init_top_k(k))

    def top_p(self, p: float) -> None:
        self._add(lib.llama_sampler_init_top_p(p, 1))

    def min_p(self, p: float) -> None:
        self._add(lib.llama_sampler_init_min_p(p, 1))

    def temperature(self, t: float) -> None:
        self._add(lib.llama_sampler_init_temp(t))

    def draw(self, seed: int) -> None:
        """End with a random draw; `seed` is 32 bits."""
        self._add(lib.llama_sampler_init_dist(seed))

    def greedy(self) -> None:
        """End with the most likely token."""
        self._add(lib.llama_sampler_init_greedy())

    def _add(self, sampler: Any) -> None:
        lib.llama_sampler_chain_add(self._chain, sampler)

    def sample(self, context: Context, index: int) -> int:
        """Draw from the logits of a batch position, and count the token as drawn."""
        token: int = lib.llama_sampler_sample(self._chain, context.handle, index)
        return token

    def pick(self, candidates: Candidates) -> int:
        """Draw from prepared candidates without counting it: follow with `accept`."""
        lib.llama_sampler_apply(self._chain, candidates.reference)
        return candidates.selected

    def accept(self, token: int) -> None:
        lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        if self._chain:
            lib.llama_sampler_free(self._chain)
            self._chain = None

    def __del__(self) -> None:
        self.close()


class Candidates:
    """A vocabulary's worth of (id, logit, p), for samplers that are applied by hand. One per context,
    reused.
    """

    _ROW = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

    def __init__(self, n_vocab: int) -> None:
        self._rows = np.zeros(n_vocab, self._ROW)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._data = self._rows.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))
        self._array = lib.llama_token_data_array(self._data, n_vocab, -1, False)
        self.reference = ctypes.byref(self._array)

    def load(self, logits: Logits) -> None:
        self._rows["id"] = self._ids
        self._rows["logit"] = logits
        self._rows["p"] = 0.0
        self._reset(len(self._ids))

    def load_one(self, token: int) -> None:
        self._rows[0] = (token, 1.0, 0.0)
        self._reset(1)

    def _reset(self, size: int) -> None:
        self._array.data = self._data
        self._array.size = size
        self._array.selected = -1
        self._array.sorted = False

    def forbid(self, tokens: Sequence[int]) -> None:
        """Make candidates impossible; their order must still be the vocabulary's."""
        self._rows["logit"][tokens] = -np.inf

    @property
    def selected(self) -> int:
        """The id that the chain picked."""
        return int(self._array.data[self._array.selected].id)

    def any_possible(self) -> bool:
        """Whether any loaded candidate still has a finite logit."""
        return bool(np.isfinite(self._rows["logit"][: self._array.size]).any())

    def first_possible(self) -> bool:
        return bool(np.isfinite(self._rows["logit"][0]))


class Grammar:
    """A GBNF grammar's state along one answer. Raises `BadRequest` when the text is not a grammar with a
    `root`.
    """

    MAX_BYTES = 512 << 10
    MAX_DEPTH = 2000

    def __init__(self, model: Model, source: str, *, param: str = "grammar") -> None:
        data = source.encode(errors="replace")
        # llama.cpp takes an empty grammar as 'no constraint'.
        if not data.strip():
            raise BadRequest("The grammar is empty.", param=param)
        if len(data) > self.MAX_BYTES:
            raise BadRequest(
                f"The grammar is {len(data)} bytes and the limit is {self.MAX_BYTES}.", param=param
            )
        # llama.cpp parses groups by recursion in C, where too deep is a crash of the process.
        if b"\0" in data or _nesting(source) > self.MAX_DEPTH:
            raise BadRequest("The grammar is nested too deeply or holds a NUL byte.", param=param)
        with _complaining:
            _messages.complaints.clear()
            self._sampler = lib.llama_sampler_init_grammar(model.vocab, data, b"root")
            complaints = list(_messages.complaints)
        if not self._sampler:
            reason = complaints[0][:200] if complaints else "it has no rules"
            raise BadRequest(f"The grammar is not valid GBNF: {reason.rstrip('.')}.", param=param)

    def clone(self) -> Grammar:
        """Another answer under the same grammar, from the state this one is in."""
        twin = Grammar.__new__(Grammar)
        twin._sampler = lib.llama_sampler_clone(self._sampler)
        return twin

    def mask(self, candidates: Candidates) -> None:
        """Set the logit of every candidate that can't come next to minus infinity."""
        lib.llama_sampler_apply(self._sampler, candidates.reference)

    def allows(self, token: int, scratch: Candidates) -> bool:
        scratch.load_one(token)
        self.mask(scratch)
        return scratch.first_possible()

    def accept(self, token: int) -> None:
        """Advance. The token must be allowed: llama.cpp ends the process otherwise."""
        lib.llama_sampler_accept(self._sampler, token)

    def close(self) -> None:
        if self._sampler:
            lib.llama_sampler_free(self._sampler)
            self._sampler = None

    def __del__(self) -> None:
        if hasattr(self, "_sampler"):
            self.close()


def _nesting(grammar: str) -> int:
    """How deep the groups of a GBNF text go; literals and character classes are skipped."""
    depth = deepest = 0
    for match in re.finditer(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|[()]', grammar, re.DOTALL):
        if match[0] == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] == ")":
            depth -= 1
    return deepest


# ------------------------------------------------------------------------------------- JSON schema to grammar

JSON_OBJECT_GBNF = r"""
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( string ":" ws value ws ( "," ws string ":" ws value ws )* )? "}"
array ::= "[" ws ( value ws ( "," ws value ws )* )? "]"
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\""
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,15} )? ( [eE] [-+]? [0-9]{1,3} )?
ws ::= ( " " | "\n" [ \t]{0,20} )?
"""

_ANY = {"type": ["object", "array", "string", "number", "boolean", "null"]}
_SHAPING = {
    "type", "properties", "additionalProperties", "items", "prefixItems", "enum", "const", "anyOf", "oneOf",
    "allOf", "$ref", "pattern", "format", "minLength", "maxLength", "minItems", "maxItems", "required",
}  # fmt: skip
_REPETITION_LIMIT = 2000


def schema_grammar(schema_text: str, *, param: str = "response_format") -> str:
    """The GBNF grammar of a JSON schema. Raises `BadRequest` for what is not a schema or can't be made a
    grammar.
    """
    try:
        schema = json.loads(schema_text)
        if not isinstance(schema, dict):
            raise BadRequest("A JSON schema must be an object.", param=param)
        grammar: str = json_schema_to_gbnf(json.dumps(_normalised(schema, param)))
        return grammar
    except BadRequest:
        raise
    except RecursionError:
        raise BadRequest("The JSON schema is nested too deeply.", param=param) from None
    except Exception as error:
        reason = str(error).split("\n")[0][:120] or type(error).__name__
        raise BadRequest(f"The JSON schema can't be turned into a grammar: {reason}.", param=param) from None


def _normalised(schema: Any, param: str) -> dict[str, Any]:
    """The schema in the words that the binding's converter knows; its silent misreadings become errors or
    are spelled out.
    """
    if schema is True or (isinstance(schema, dict) and not _SHAPING & schema.keys()):
        if isinstance(schema, dict) and ("$defs" in schema or "definitions" in schema):
            return {**schema, **_ANY}
        return dict(_ANY)
    if not isinstance(schema, dict):
        raise BadRequest(f"A JSON schema has {schema!r:.60} where a schema belongs.", param=param)
    result = dict(schema)
    for key in ("minLength", "maxLength", "minItems", "maxItems"):
        if key in result:
            value = result[key]
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _REPETITION_LIMIT:
                raise BadRequest(
                    f"In a JSON schema {key} must be a whole number from 0 to {_REPETITION_LIMIT}.",
                    param=param,
                )
    for low, high in (("minLength", "maxLength"), ("minItems", "maxItems")):
        if low in result and high in result and result[low] > result[high]:
            raise BadRequest(f"In a JSON schema {low} is above {high}: nothing can match.", param=param)
    if "pattern" in result:
        try:
            re.compile(result["pattern"])
        except (re.error, TypeError, OverflowError) as error:
            raise BadRequest(f"A pattern in the JSON schema is broken: {error}.", param=param) from None
    if any(int(n) > _REPETITION_LIMIT for n in re.findall(r"\d{4,}", str(result.get("pattern", "")))):
        raise BadRequest(
            f"A pattern in the JSON schema repeats more than {_REPETITION_LIMIT} times.", param=param
        )
    if "required" in result:
        required = result["required"]
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise BadRequest("In a JSON schema `required` must be a list of names.", param=param)
        # A required name without a schema may be anything, but it must be there.
        if not {"$ref", "anyOf", "oneOf", "allOf"} & result.keys():
            result["properties"] = {
                **result.get("properties", {}),
                **{n: True for n in required if n not in result.get("properties", {})},
            }
    if isinstance(result.get("enum"), list) and not result["enum"]:
        raise BadRequest("A JSON schema has an empty enum: nothing can match.", param=param)
    for key in ("properties", "$defs", "definitions"):
        if key in result:
            if not isinstance(result[key], dict):
                raise BadRequest(f"In a JSON schema `{key}` must be an object.", param=param)
            result[key] = {name: _normalised(part, param) for name, part in result[key].items()}
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in result:
            if not isinstance(result[key], list) or not result[key]:
                raise BadRequest(f"In a JSON schema `{key}` must be a list that is not empty.", param=param)
            result[key] = [_normalised(part, param) for part in result[key]]
    if isinstance(result.get("items"), list):
        result["items"] = [_normalised(part, param) for part in result["items"]]
    elif "items" in result:
        result["items"] = _normalised(result["items"], param)
    extra = result.get("additionalProperties")
    if isinstance(extra, dict):
        result["additionalProperties"] = _normalised(extra, param)
    elif extra is True:
        result["additionalProperties"] = dict(_ANY)
    elif extra not in (None, False):
        raise BadRequest("In a JSON schema `additionalProperties` must be a schema.", param=param)
    if result.get("type") == "object" and not result.get("properties") and extra is False:
        result["properties"] = {}
    return result


# ----------------------------------------------------------------------------------------------- quantisation


def quantize(
    source: Path,
    target: Path,
    ftype: str,
    *,
    threads: int = 1,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write `source` requantised to `ftype` (`Q4_0`, `Q8_0`, `Q4_K_M` …) to `target`; `progress` gets 0..1.

    Raises `BadRequest` for an unknown `ftype` and `ModelLoadError` when llama.cpp refuses.
    """
    name = ftype.upper()
    value = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{name}", None)
    if value is None:
        raise BadRequest(f"llama.cpp knows no quantisation {ftype!r}.", param="ftype")
    gguf.read_info(source)
    params = lib.llama_model_quantize_default_params()
    params.ftype = value
    params.nthread = threads
    params.allow_requantize = True

    def listen(line: str) -> None:
        if progress is not None and (match := re.match(r"\[\s*(\d+)/\s*(\d+)\]", line)):
            progress(int(match[1]) / int(match[2]))

    with _complaining:
        _messages.complaints.clear()
        _messages.listener = listen
        try:
            code = lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
        finally:
            _messages.listener = None
        complaints = list(_messages.complaints)
    if code != 0:
        target.unlink(missing_ok=True)
        raise ModelLoadError(f"{source.name} can't be requantised to {name}: {_load_reason(complaints)}.")
