"""The decoder on a CPU through the C form of its layer: the same bits whatever else is in the batch."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref
from pathlib import Path
from typing import Any

import torch

from edgecloud.kernels import native
from edgecloud.kernels.kv_cache import KvCache, allocate_kv_cache

from ..plan import StepPlan
from .config import DecoderConfig
from .decoder import rotary_tables
from .matrices import DecoderWeights, LayerWeights, Matrix


class NativeDecoder:
    """Implements `Decoder`, for int8 and float32 weights and heads of a multiple of 16 dimensions.

    `context` and `max_rows` bound positions and the tokens of one step. Raises `native.NativeUnavailable`
    where there is no compiler or the model has other sizes.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        *,
        num_blocks: int,
        block_size: int,
        kv_type: torch.dtype,
        context: int,
        max_rows: int,
        threads: int,
        library_folder: Path,
    ) -> None:
        if config.head_dim % native.LANES or config.head_dim > native.MAX_HEAD_DIM:
            raise native.NativeUnavailable(f"its heads have {config.head_dim} dimensions")
        self._library = native.load_library(library_folder)
        self.kv: KvCache = allocate_kv_cache(
            config.layers, num_blocks, block_size, config.kv_heads, config.head_dim, kv_type
        )
        self._config = config
        # Whatever a pointer of the C structures leads to.
        self._alive: list[torch.Tensor] = []
        kind, slot_bytes, _ = native.kv_layout(self.kv.layers[0])
        tables = rotary_tables(config.frequencies, context)
        self._model = native.Model(
            config.hidden,
            config.heads,
            config.kv_heads,
            config.head_dim,
            config.intermediate,
            kind,
            slot_bytes,
            block_size.bit_length() - 1,
            threads,
            config.norm_eps,
            *(self._hold(table) for table in tables),
        )
        self._norm = self._hold(weights.norm)
        self._head = self._linear(weights.head)
        # What was held last is the head as it is packed.
        self._embedding = _Embedding(self._alive[-1] if weights.head is weights.embedding else None, weights)
        self._num_logits = weights.head.weight.shape[0]
        self._layers = [self._layer(index, layer) for index, layer in enumerate(weights.layers)]
        self._scratch = _Scratch(config, max_rows)
        self._max_rows, self._context = max_rows, context

    def forward(self, plan: StepPlan) -> torch.Tensor:
        # C would write past the end of what was made for so many.
        if len(plan.tokens) > self._max_rows or max(plan.positions) >= self._context:
            raise ValueError(
                f"a step of {len(plan.tokens)} tokens up to position {max(plan.positions)}, with room "
                f"for {self._max_rows} up to {self._context - 1}"
            )
        step, keep_alive = self._scratch.step(plan)
        hidden = self._scratch.hidden[: len(plan.tokens)]
        hidden.copy_(self._embedding.rows(plan.tokens))
        model, layer_call = byref(self._model), self._library.layer
        for layer in self._layers:
            layer_call(model, byref(layer), byref(step))
        del keep_alive
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.contiguous()
        out = torch.empty(len(rows), self._num_logits)
        # A prompt may have more choices than a step has tokens.
        for part, logits in zip(rows.split(self._max_rows), out.split(self._max_rows), strict=True):
            step = self._scratch.bare(len(part))
            self._library.project(
                byref(self._model),
                self._norm,
                byref(self._head),
                byref(step),
                part.data_ptr(),
                logits.data_ptr(),
            )
        return out

    def _layer(self, index: int, layer: LayerWeights) -> native.Layer:
        return native.Layer(
            self._linear(layer.qkv),
            self._linear(layer.o),
            self._linear(layer.gate_up),
            self._linear(layer.down),
            self._hold(layer.attn_norm),
            self._hold(layer.ffn_norm),
            self._hold(layer.q_norm),
            self._hold(layer.k_norm),
            native.kv_layout(self.kv.layers[index])[2],
            self._config.windows[index] or 0,
        )

    def _linear(self, matrix: Matrix) -> native.Linear:
        n, k = matrix.weight.shape
        padding = -n % native.LANES
        bias, scale, sums = matrix.bias, matrix.scale, None
        if scale is None:
            packed = native.pack_floats(matrix.weight)
        else:
            packed = native.pack_codes(matrix.weight)
            sums = native.group_sums(matrix.weight)
            scale = _padded(scale, padding)
        if bias is not None:
            bias = _padded(bias, padding)
        for part in (bias, scale, sums, packed):
            self._hold(part)
        return native.linear(packed, n, k, bias, scale, sums)

    def _hold(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        tensor = tensor.contiguous()
        self._alive.append(tensor)
        return tensor.data_ptr()


class _Embedding:
    """Rows of the embedding, out of the packed head where the two are one."""

    def __init__(self, packed: torch.Tensor | None, weights: DecoderWeights) -> None:
        self._packed = packed
        self._matrix = None if packed is not None else weights.embedding
        self._scale = weights.embedding.scale
        self._k = weights.embedding.weight.shape[1]

    def rows(self, tokens: Sequence[int]) -> torch.Tensor:
        index = torch.tensor(tokens)
        if self._matrix is not None:
            rows = self._matrix.weight[index]
        else:
            assert self._packed is not None
            tiles, lanes = index // native.LANES, index % native.LANES
            packed = self._packed
            rows = packed[tiles, :, lanes].flatten(1)[:, : self._k]
        return rows.float() if self._scale is None else rows.float() * self._scale[index].unsqueeze(1)


class _Scratch:
    """Memory that every step uses again, and the C description of a step in it."""

    def __init__(self, config: DecoderConfig, max_rows: int) -> None:
        widest_in = max(config.hidden, config.q_width, config.intermediate)
        widest_out = max(config.q_width + 2 * config.kv_width, 2 * config.intermediate)
        self.hidden = torch.empty(max_rows, config.hidden)
        self._wide = torch.empty(max_rows, widest_out)
        self._heads_out = torch.empty(max_rows, config.q_width)
        self._input = torch.empty(max_rows, widest_in)
        self._codes = torch.empty(max_rows, -(-widest_in // 4) * 4, dtype=torch.uint8)
        self._code_scale = torch.empty(max_rows, -(-widest_in // native.GROUP))
        # Tokens of one sequence that one thread takes at a time.
        self._queries = max(native.TOGETHER * config.kv_heads // config.heads, 1)

    def step(self, plan: StepPlan) -> tuple[native.Step, Any]:
        """The step, and what must outlive its use."""
        tables, rows, lengths, starts = array("i"), array("i"), array("i"), array("i")
        for item, offset in zip(plan.items, plan.offsets, strict=False):
            at = len(tables)
            tables.extend(item.table)
            for first in range(0, item.num_tokens, self._queries):
                rows.append(offset + first)
                lengths.append(min(self._queries, item.num_tokens - first))
                starts.append(at)
        positions, slots = array("q", plan.positions), array("q", plan.slots)
        arrays = (positions, slots, rows, lengths, starts, tables)
        step = self.bare(len(plan.tokens))
        step.groups = len(rows)
        step.positions, step.slots, step.group_row, step.group_len, step.group_table, step.tables = (
            part.buffer_info()[0] for part in arrays
        )
        return step, arrays

    def bare(self, rows: int) -> native.Step:
        step = native.Step()
        step.rows = rows
        step.x, step.wide, step.heads_out, step.input, step.codes, step.code_scale = (
            part.data_ptr()
            for part in (
                self.hidden,
                self._wide,
                self._heads_out,
                self._input,
                self._codes,
                self._code_scale,
            )
        )
        return step


def _padded(vector: torch.Tensor, padding: int) -> torch.Tensor:
    return torch.nn.functional.pad(vector, (0, padding))
