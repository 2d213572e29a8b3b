"""The decoder over the kernels: Triton on a GPU, torch's operations on a CPU without a compiler."""

from __future__ import annotations

from typing import NamedTuple

import torch

from edgecloud.kernels.attention import paged_attention
from edgecloud.kernels.attention_plan import AttentionPlan, plan_attention
from edgecloud.kernels.kv_cache import KvCache, KvLayer, allocate_kv_cache
from edgecloud.kernels.rms_norm import add_rms_norm, rms_norm
from edgecloud.kernels.rotary import rotary_write_kv
from edgecloud.kernels.silu_mul import silu_mul

from ..plan import StepPlan
from .config import DecoderConfig
from .decoder import rotary_tables
from .graphs import DecodeGraphs
from .linear import Linear, linear_of
from .matrices import FORMS, DecoderWeights, LayerWeights


class _Layer(NamedTuple):
    attn_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None
    o: Linear
    ffn_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    kv: KvLayer
    window: int | None


class TorchDecoder:
    """Implements `Decoder`. Activations are in the type of the weights, float32 beside int8 ones on a CPU.

    On a GPU, steps of up to `max_running` decodes are CUDA graphs.
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
        device: torch.device,
        max_running: int = 0,
    ) -> None:
        self.kv: KvCache = allocate_kv_cache(
            config.layers, num_blocks, block_size, config.kv_heads, config.head_dim, kv_type, device
        )
        self._config = config
        self._device = device
        self._type = torch.bfloat16 if device.type == "cuda" else torch.float32
        if weights.norm.dtype in FORMS.values() and weights.embedding.weight.is_floating_point():
            self._type = weights.embedding.weight.dtype
        self._cosines, self._sines = (part.to(device) for part in rotary_tables(config.frequencies, context))
        self._layers = [self._layer(index, layer) for index, layer in enumerate(weights.layers)]
        self._norm = weights.norm.to(device)
        self._head = linear_of(weights.head, device)
        self._embedding = weights.embedding.weight.to(device)
        scale = weights.embedding.scale
        self._embedding_scale = None if scale is None else scale.to(device)
        self.graphs: DecodeGraphs | None = None
        """None: every step is launched as it comes."""
        if device.type == "cuda" and max_running:
            with torch.inference_mode():
                self.graphs = DecodeGraphs(
                    self.compute,
                    config.windows,
                    max_rows=max_running,
                    context=context,
                    num_blocks=num_blocks,
                    block_size=block_size,
                    device=device,
                )

    def forward(self, plan: StepPlan) -> torch.Tensor:
        if self.graphs is not None and (hidden := self.graphs.run(plan)) is not None:
            return hidden
        tokens, positions, slots = (
            torch.tensor(numbers, device=self._device)
            for numbers in (plan.tokens, plan.positions, plan.slots)
        )
        ends = [item.start + item.num_tokens for item in plan.items]
        tables = [item.table for item in plan.items]
        plans = {
            window: plan_attention(
                plan.offsets, ends, tables, self.kv.block_size, window=window, device=self._device
            )
            for window in set(self._config.windows)
        }
        return self.compute(tokens, positions, slots, plans)

    def compute(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        plans: dict[int | None, AttentionPlan],
    ) -> torch.Tensor:
        """The layers alone, with everything on the device: what a CUDA graph captures."""
        config = self._config
        cosines, sines = self._cosines[positions], self._sines[positions]
        rows = self._embedding[tokens]
        if self._embedding_scale is not None:
            rows = rows.float() * self._embedding_scale[tokens].unsqueeze(1)
        x = rows.to(self._type)
        h = rms_norm(x, self._layers[0].attn_norm, config.norm_eps)
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(h).unflatten(1, (-1, config.head_dim))
            if layer.qk_norm is not None:
                rotated = config.heads + config.kv_heads
                normed = rms_norm(qkv[:, :rotated], layer.qk_norm, config.norm_eps)
                qkv = torch.cat((normed, qkv[:, rotated:]), 1)
            q = rotary_write_kv(qkv, cosines, sines, layer.kv, slots)
            attended = paged_attention(q, layer.kv, plans[layer.window]).flatten(1)
            h, x = add_rms_norm(layer.o(attended), x, layer.ffn_norm, config.norm_eps)
            y = layer.down(silu_mul(layer.gate_up(h)))
            if index + 1 < len(self._layers):
                h, x = add_rms_norm(y, x, self._layers[index + 1].attn_norm, config.norm_eps)
            else:
                x = x + y
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._head(rms_norm(hidden.contiguous(), self._norm, self._config.norm_eps)).float()

    def _layer(self, index: int, layer: LayerWeights) -> _Layer:
        config, device = self._config, self._device
        qk_norm = None
        if layer.q_norm is not None and layer.k_norm is not None:
            # One weight a head, so that queries and keys, which are neighbours, are normed in one go.
            qk_norm = torch.cat(
                (layer.q_norm.expand(config.heads, -1), layer.k_norm.expand(config.kv_heads, -1))
            ).to(device)
        return _Layer(
            layer.attn_norm.to(device),
            linear_of(layer.qkv, device),
            qk_norm,
            linear_of(layer.o, device),
            layer.ffn_norm.to(device),
            linear_of(layer.gate_up, device),
            linear_of(layer.down, device),
            self.kv.layers[index],
            config.windows[index],
        )
