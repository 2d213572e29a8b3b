"""Merging the attention states of parts of the keys."""

from __future__ import annotations

import pytest
import torch

from edgecloud.kernels.merge import merge_states, merge_states_reference

from .builders import NAN, row_error

EMPTY = float("-inf")


def random_states(parts: int, dim: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 2, parts, dim), torch.randn(3, 2, parts) * 10


@pytest.mark.parametrize("parts", [1, 2, 5, 40])
def test_parts_are_weighed_by_their_sums(parts: int) -> None:
    values, lse2 = random_states(parts)

    out, total = merge_states(values, lse2)

    expected, expected_total = merge_states_reference(values, lse2)
    assert row_error(out, expected) < 1e-5
    assert torch.allclose(total, expected_total, atol=1e-4)


def test_a_part_without_keys_changes_no_bit_whatever_it_holds() -> None:
    values, lse2 = random_states(1)
    empty = torch.cat((values, torch.full_like(values, NAN)), 2), torch.cat((lse2, lse2 * 0 + EMPTY), 2)

    out, total = merge_states(*empty)

    assert torch.equal(out, values.squeeze(2))
    assert torch.equal(total, lse2.squeeze(2))


def test_no_keys_at_all_are_zero_and_minus_infinity() -> None:
    out, total = merge_states(torch.full((1, 1, 3, 16), NAN), torch.full((1, 1, 3), EMPTY))

    assert out.abs().sum() == 0
    assert total.item() == EMPTY


def test_the_order_of_merging_changes_almost_nothing() -> None:
    values, lse2 = random_states(3)
    first, first_lse2 = merge_states(values[:, :, :2], lse2[:, :, :2])

    out, _ = merge_states(
        torch.stack((first, values[:, :, 2]), 2), torch.stack((first_lse2, lse2[:, :, 2]), 2)
    )

    assert row_error(out, merge_states(values, lse2)[0]) < 1e-5


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="lse2 \\(3, 2, 4\\)"):
        merge_states(torch.randn(3, 2, 5, 8), torch.randn(3, 2, 4))
