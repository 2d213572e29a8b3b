"""Weights of other formats, against unpacking written the other way round: by hand, or by the gguf
package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from edgecloud.kernels.repack import repack_awq, repack_gguf, repack_gptq
from edgecloud.kernels.w4a16 import Int4Weight, dequantize_int4, int4_linear
from edgecloud.kernels.w8a16 import GroupedInt8Weight, dequantize_grouped_int8

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

    weight = repack_awq(
        words(codes.view(64, 2, 8)[..., order]), words(zeros.view(-1, 2, 8)[..., order]), scales
    )

    assert (dequantize_int4(weight) - weights).abs().max() < 15 / 1024


# cases: E79
@pytest.mark.parametrize("group", [32, 64])
def test_gptq_packs_inputs_and_stores_zeros_minus_one(group: int) -> None:
    codes, zeros, scales, weights = hand_made(group)

    weight, order = repack_gptq(
        words(codes.view(8, 8, 16).transpose(1, 2)), words((zeros - 1).view(-1, 2, 8)), scales
    )

    assert (dequantize_int4(weight) - weights).abs().max() < 15 / 1024
    assert order is None


# cases: E79
def test_gptq_inputs_in_the_order_of_their_size_are_sorted_by_group() -> None:
    codes, zeros, scales, weights = hand_made(32)
    shuffle = torch.randperm(64)
    g_idx = (torch.arange(64) // 32)[shuffle]
    packed = words(codes[shuffle].view(8, 8, 16).transpose(1, 2)), words((zeros - 1).view(-1, 2, 8)), scales
    x = torch.randn(3, 64)

    weight, order = repack_gptq(*packed, g_idx)

    assert order is not None
    assert torch.allclose(int4_linear(x[:, order], weight), x @ weights[shuffle], atol=0.2)
    assert repack_gptq(*packed, torch.arange(64) // 32).order is None
    with pytest.raises(ValueError, match="unequal size"):
        repack_gptq(*packed, torch.zeros(64, dtype=torch.int32))
