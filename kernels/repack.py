"""Quantised weights as files hold them, to the layouts that our kernels read.

GGUF (Q4_0, Q4_1, Q4_K, Q8_0), AWQ and GPTQ. Nothing is quantised again: codes keep their values, and so do
scales and offsets where the file has them as fp16. What is a product (zero times scale, or Q4_K's 6-bit
numbers times their factor) is rounded to fp16, one part in 2,000.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .dispatch import require
from .w4a16 import Int4Weight, pack_int4
from .w8a16 import GroupedInt8Weight

GGUF_BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q4_K": 144, "Q8_0": 34}
"""Types that stay quantised, and the bytes of a block: 32 weights, 256 for Q4_K."""


def repack_gguf(data: torch.Tensor, type: str) -> Int4Weight | GroupedInt8Weight:
    """A GGUF tensor: `data` uint8 `[outputs, bytes of a row]`, `type` as ggml names it.

    Raises `ValueError` for another type, or rows that are no whole number of blocks.
    """
    require(
        type in GGUF_BLOCK_BYTES, f"No kernel reads {type}: dequantise it, or use {sorted(GGUF_BLOCK_BYTES)}."
    )
    size = GGUF_BLOCK_BYTES[type]
    require(
        data.shape[1] % size == 0,
        f"A row of {data.shape[1]} bytes is no whole number of {type} blocks ({size}).",
    )
    blocks = data.view(data.shape[0], -1, size)
    if type == "Q4_K":
        return _repack_q4_k(blocks)
    scale = _halves(blocks[..., :2]).squeeze(-1).T
    if type == "Q8_0":
        codes = blocks[..., 2:].contiguous().view(torch.int8).flatten(1).T
        return GroupedInt8Weight(codes.contiguous(), scale.contiguous())
    head = 2 if type == "Q4_0" else 4
    # ggml's nibbles are ours: element j low, j + 16 high. Only the axes differ.
    packed = blocks[..., head:].flatten(1).T.contiguous()
    offset = None if type == "Q4_0" else _halves(blocks[..., 2:4]).squeeze(-1).T.contiguous()
    return Int4Weight(packed, scale.contiguous(), offset)


def _repack_q4_k(blocks: torch.Tensor) -> Int4Weight:
    """256 weights: two fp16 factors, 8 scales and 8 minima of 6 bits in 12 bytes, then four times 32 bytes
    whose low nibbles are one group of 32 and whose high nibbles the next."""
    outputs, count = blocks.shape[:2]
    factor, min_factor = _halves(blocks[..., :4]).float().split(1, -1)
    low, middle, high = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((low & 0x3F, high & 0x0F | low >> 2 & 0x30), -1)
    minima = torch.cat((middle & 0x3F, high >> 4 | middle >> 2 & 0x30), -1)
    pairs = blocks[..., 16:].reshape(outputs, count, 4, 1, 32)
    codes = torch.cat((pairs & 15, pairs >> 4), 3).view(outputs, -1).T
    scale = (factor * scales).flatten(1).T
    offset = (-min_factor * minima).flatten(1).T
    return pack_int4(codes.contiguous(), scale, offset)


def _halves(data: torch.Tensor) -> torch.Tensor:
    return data.contiguous().view(torch.float16)


class Unpacked(NamedTuple):
    """What AWQ and GPTQ files say, one number a place: `codes` `[inputs, outputs]`, `zeros` and `scales`
    `[groups, outputs]`, and `groups` `[inputs]`, which of them an input takes.

        w[k, n] = (codes[k, n] - zeros[g, n]) * scales[g, n]        g = groups[k]
    """

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    groups: torch.Tensor


def unpack_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Unpacked:
    """AWQ: `qweight` int32 `[inputs, outputs / 8]`, `qzeros` `[groups, outputs / 8]`, `scales` `[groups,
    outputs]`.

    Nibble i of a word is output 0, 2, 4, 6, 1, 3, 5, 7 of its eight. Raises `ValueError` for shapes that
    don't fit each other.
    """
    inverse = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    codes, zeros = (_nibbles(packed)[..., inverse].flatten(1) for packed in (qweight, qzeros))
    return _checked(codes, zeros, scales, None)


def unpack_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    zeros_less_one: bool = True,
) -> Unpacked:
    """GPTQ: `qweight` int32 `[inputs / 8, outputs]`, eight inputs a word; `qzeros` `[groups, outputs / 8]`,
    stored minus one but in files of the second format; `scales` `[groups, outputs]`; `g_idx` `[inputs]` the
    group of each input, where activations were ordered by size ("act-order").

    Raises `ValueError` for shapes that don't fit each other.
    """
    codes = _nibbles(qweight).transpose(1, 2).flatten(0, 1)
    # A zero of 0 was stored as -1, of which a nibble keeps 15.
    zeros = _nibbles(qzeros).flatten(1) + int(zeros_less_one) & 15
    return _checked(codes, zeros, scales, g_idx)


def _checked(
    codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor, g_idx: torch.Tensor | None
) -> Unpacked:
    inputs, count = len(codes), len(scales)
    require(
        count > 0 and inputs % count == 0 and zeros.shape == scales.shape == (count, codes.shape[1]),
        f"Codes {tuple(codes.shape)}, zeros {tuple(zeros.shape)} and scales {tuple(scales.shape)} don't fit.",
    )
    groups = torch.arange(inputs) // (inputs // count) if g_idx is None else g_idx.long()
    require(
        groups.shape == (inputs,) and int(groups.min()) >= 0 and int(groups.max()) < count,
        f"The {len(groups)} inputs' groups are not those of {inputs} inputs in {count} groups.",
    )
    return Unpacked(codes, zeros, scales, groups)


def dequantize_unpacked(weight: Unpacked) -> torch.Tensor:
    """`[inputs, outputs]` fp32, exactly what the file means."""
    zeros, scales = weight.zeros.float()[weight.groups], weight.scales.float()[weight.groups]
    return (weight.codes.float() - zeros) * scales


class Reordered(NamedTuple):
    """A weight whose inputs were sorted by group: multiply it with `x[:, order]`. None: they were in
    order."""

    weight: Int4Weight
    order: torch.Tensor | None


def repack_unpacked(weight: Unpacked) -> Reordered:
    """In the layout of the kernels. Groups that no kernel reads whole are cut into several that it does.

    Raises `ValueError` if the groups are not of equal size, or of no multiple of 32 inputs.
    """
    codes, zeros, scales, groups = weight
    size = len(codes) // len(scales)
    order = None
    if bool((groups.diff() < 0).any()):
        order = torch.argsort(groups, stable=True)
        codes = codes[order]
    counts = torch.bincount(groups, minlength=len(scales))
    require(
        bool((counts == size).all()), f"Groups of unequal size: {counts.tolist()}, not {size} inputs each."
    )
    part = next((each for each in (256, 128, 64, 32) if size % each == 0), 0)
    require(part > 0, f"Groups of {size} inputs: multiples of 32 are read.")
    scales, zeros = (each.float().repeat_interleave(size // part, 0) for each in (scales, zeros))
    # Symmetric: nothing to read beside the scales, and nothing to round.
    offset = None if bool((zeros == 8).all()) else -zeros * scales
    return Reordered(pack_int4(codes, scales, offset), order)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """`[..., 8]`, the lowest first."""
    return words.unsqueeze(-1) >> torch.arange(0, 32, 4) & 15
