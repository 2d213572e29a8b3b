"""Weights of other formats, against unpacking written the other way round: by hand, or by the gguf
package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gguf
import numpy as np
import pytest
import torch

from edgecloud.kernels.repack import (
    Unpacked,
    dequantize_unpacked,
    repack_gguf,
    repack_unpacked,
    unpack_awq,
    unpack_gptq,
)
from edgecloud.kernels.w4a16 import Int4Weight, dequantize_int4, int4_linear
from edgecloud.kernels.w8a16 import GroupedInt8Weight, dequantize_grouped_int8

from . import foreign_words as foreign

OUTPUTS, INPUTS = 24, 512


def gguf_tensor(type: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Its bytes, and its values as the gguf package reads them."""
    kind = gguf.GGMLQuantizationType[type]
    source = np.random.default_rng(0)
    if type == "Q4_K":
        # The package cannot write it: any bytes are a tensor, but for the two factors of each block.
        data = source.integers(0, 256, (OUTPUTS, INPUTS // 256, 144), np.uint8)
        data[..., :4] = (
            source.uniform(0.001, 0.01, (OUTPUTS, INPUTS // 256, 2)).astype(np.float16).view(np.uint8)
        )
        data = data.reshape(OUTPUTS, -1)
    else:
        weight = source.standard_normal((OUTPUTS, INPUTS)).astype(np.float32)
        data = gguf.quants.quantize(weight, kind)
    return torch.from_numpy(data), torch.from_numpy(gguf.quants.dequantize(data, kind))


@pytest.mark.parametrize("type", ["Q4_0", "Q4_1", "Q8_0"])
def test_gguf_keeps_every_value(type: str) -> None:
    data, expected = gguf_tensor(type)

    weight = repack_gguf(data, type)

    values = dequantize_int4(weight) if isinstance(weight, Int4Weight) else dequantize_grouped_int8(weight)
    assert torch.equal(values.T, expected)
    assert isinstance(weight, GroupedInt8Weight) == (type == "Q8_0")


def test_q4_k_keeps_its_codes_and_rounds_its_scales_to_fp16() -> None:
    data, expected = gguf_tensor("Q4_K")

    weight = repack_gguf(data, "Q4_K")

    assert isinstance(weight, Int4Weight)
    # Of 15 codes and a minimum, each to within one part in 2,048.
    assert torch.allclose(
        dequantize_int4(weight).T, expected, rtol=0, atol=float(expected.abs().max()) / 1024
    )


def test_types_and_rows_that_no_kernel_reads_are_refused() -> None:
    with pytest.raises(ValueError, match="No kernel reads Q6_K"):
        repack_gguf(torch.zeros(4, 210, dtype=torch.uint8), "Q6_K")
    with pytest.raises(ValueError, match="no whole number of Q4_0 blocks"):
        repack_gguf(torch.zeros(4, 35, dtype=torch.uint8), "Q4_0")


def words(nibbles: torch.Tensor) -> torch.Tensor:
    """Eight nibbles `[..., 8]`, the lowest first, as one int32."""
    shifted = nibbles.long() << torch.arange(0, 32, 4)
    return shifted.sum(-1).to(torch.uint32).view(torch.int32)


def hand_made(group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes `[64, 16]`, zeros and scales of each group, and the weights that they mean."""
    codes = torch.randint(0, 16, (64, 16))
    zeros, scales = torch.randint(1, 16, (64 // group, 16)), torch.rand(64 // group, 16).half()
    weights = (codes.view(-1, group, 16) - zeros.unsqueeze(1)) * scales.float().unsqueeze(1)
    return codes, zeros, scales, weights.flatten(0, 1)


# cases: E79
@pytest.mark.parametrize("group", [32, 64])
def test_awq_interleaves_its_outputs(group: int) -> None:
    codes, zeros, scales, weights = hand_made(group)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    unpacked = unpack_awq(
        words(codes.view(64, 2, 8)[..., order]), words(zeros.view(-1, 2, 8)[..., order]), scales
    )

    assert torch.equal(dequantize_unpacked(unpacked), weights)
    weight, inputs = repack_unpacked(unpacked)
    assert inputs is None
    assert (dequantize_int4(weight) - weights).abs().max() < 15 / 1024


# cases: E79
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("less", [1, 0])
def test_gptq_packs_inputs_and_stores_zeros_minus_one_or_as_they_are(group: int, less: int) -> None:
    codes, zeros, scales, weights = hand_made(group)

    unpacked = unpack_gptq(
        words(codes.view(8, 8, 16).transpose(1, 2)),
        words((zeros - less).view(-1, 2, 8)),
        scales,
        zeros_less_one=less == 1,
    )

    assert torch.equal(dequantize_unpacked(unpacked), weights)
    weight, order = repack_unpacked(unpacked)
    assert (dequantize_int4(weight) - weights).abs().max() < 15 / 1024
    assert order is None


# cases: E79
@pytest.mark.parametrize(
    ("unpack", "words"),
    [
        (unpack_awq, (foreign.AWQ_QWEIGHT, foreign.AWQ_QZEROS)),
        (unpack_gptq, (foreign.GPTQ_QWEIGHT, foreign.GPTQ_QZEROS)),
        (partial(unpack_gptq, zeros_less_one=False), (foreign.GPTQ_QWEIGHT, foreign.GPTQ_V2_QZEROS)),
    ],
    ids=["awq", "gptq", "gptq_v2"],
)
def test_what_other_programs_wrote_is_read_as_they_meant_it(
    unpack: Callable[..., Unpacked], words: tuple[torch.Tensor, torch.Tensor]
) -> None:
    unpacked = unpack(*words, foreign.SCALES)
    assert torch.equal(unpacked.codes, foreign.CODES)
    assert torch.equal(unpacked.zeros, foreign.ZEROS)
    codes, zeros = foreign.CODES.view(-1, foreign.GROUP, foreign.OUTPUTS), foreign.ZEROS.unsqueeze(1)
    meant = ((codes - zeros) * foreign.SCALES.float().unsqueeze(1)).flatten(0, 1)
    assert torch.equal(dequantize_unpacked(unpacked), meant)
    weight, order = repack_unpacked(unpacked)
    assert order is None
    assert (dequantize_int4(weight) - meant).abs().max() < 15 / 1024


def test_a_symmetric_weight_has_no_offsets_to_read() -> None:
    codes, zeros, scales, _ = hand_made(64)
    packed = words(codes.view(8, 8, 16).transpose(1, 2))

    unpacked = unpack_gptq(packed, words(torch.full_like(zeros, 7).view(-1, 2, 8)), scales)
    weight, _ = repack_unpacked(unpacked)

    assert weight.offset is None
    assert torch.equal(dequantize_int4(weight), dequantize_unpacked(unpacked))


def test_a_zero_of_nothing_minus_one_is_nothing() -> None:
    codes, zeros, scales, _ = hand_made(64)
    zeros = torch.zeros_like(zeros)
    packed = words(codes.view(8, 8, 16).transpose(1, 2))

    unpacked = unpack_gptq(packed, words((zeros - 1 & 15).view(-1, 2, 8)), scales)

    assert torch.equal(dequantize_unpacked(unpacked), codes * scales.float())


# cases: E79
def test_gptq_inputs_in_the_order_of_their_size_are_sorted_by_group() -> None:
    codes, zeros, scales, weights = hand_made(32)
    shuffle = torch.randperm(64)
    g_idx = ((torch.arange(64) // 32)[shuffle]).int()
    packed = words(codes[shuffle].view(8, 8, 16).transpose(1, 2)), words((zeros - 1).view(-1, 2, 8)), scales
    x = torch.randn(3, 64)

    unpacked = unpack_gptq(*packed, g_idx)
    weight, order = repack_unpacked(unpacked)

    assert torch.equal(dequantize_unpacked(unpacked), weights[shuffle])
    assert order is not None
    assert torch.allclose(int4_linear(x[:, order], weight), x @ weights[shuffle], atol=0.2)
    assert repack_unpacked(unpack_gptq(*packed, torch.arange(64) // 32)).order is None
    with pytest.raises(ValueError, match="unequal size"):
        repack_unpacked(unpack_gptq(*packed, torch.zeros(64, dtype=torch.int32)))


@pytest.mark.parametrize(("group", "read"), [(512, 256), (96, 32), (192, 64)])
def test_groups_larger_than_a_kernel_reads_are_cut(group: int, read: int) -> None:
    codes = torch.randint(0, 16, (2 * group, 8))
    zeros, scales = torch.randint(1, 16, (2, 8)), torch.rand(2, 8).half()
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    unpacked = unpack_awq(
        words(codes.view(-1, 1, 8)[..., order]), words(zeros.view(-1, 1, 8)[..., order]), scales
    )
    weight, _ = repack_unpacked(unpacked)

    assert 2 * len(weight.codes) // len(weight.scale) == read
    assert (dequantize_int4(weight) - dequantize_unpacked(unpacked)).abs().max() < 15 / 1024


def test_parts_that_do_not_fit_each_other_are_refused() -> None:
    codes, zeros, scales, _ = hand_made(32)
    packed, packed_zeros = words(codes.view(8, 8, 16).transpose(1, 2)), words((zeros - 1).view(-1, 2, 8))
    with pytest.raises(ValueError, match="don't fit"):
        unpack_gptq(packed, packed_zeros, scales[:1])
    with pytest.raises(ValueError, match="groups"):
        unpack_gptq(packed, packed_zeros, scales, torch.full((64,), 2))
    with pytest.raises(ValueError, match="multiples of 32"):
        repack_unpacked(unpack_gptq(packed, packed_zeros.repeat(2, 1), scales.repeat(2, 1)))
