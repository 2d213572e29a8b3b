"""Moving blocks, against a model that is a list of pages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgecloud.kernels.blocks import copy_blocks, copy_blocks_reference, move_blocks
from edgecloud.kernels.kv_cache import allocate_kv_cache


def random_storage(num_blocks: int = 8, size: int = 48) -> torch.Tensor:
    return torch.randint(0, 256, (2, num_blocks, size), dtype=torch.uint8)


@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=8, unique_by=lambda pair: pair[1]
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_copies_are_what_copies_of_pages_are(pairs: list[tuple[int, int]]) -> None:
    storage = random_storage()
    pages = [storage[:, block].clone() for block in range(8)]
    copied = list(pages)
    for source, target in pairs:
        copied[target] = pages[source]

    copy_blocks(storage, pairs)

    assert torch.equal(storage, torch.stack(copied, 1))


def test_a_long_block_is_copied_whole() -> None:
    storage = random_storage(4, 16 * 1100)
    expected = storage.clone()
    copy_blocks_reference(expected, [(0, 3), (2, 1)])

    copy_blocks(storage, [(0, 3), (2, 1)])

    assert torch.equal(storage, expected)


def test_two_copies_to_one_block_are_refused() -> None:
    with pytest.raises(ValueError, match="write the same block"):
        copy_blocks(random_storage(), [(0, 1), (2, 1)])


# cases: E76
def test_a_swap_out_and_in_brings_back_every_bit_scales_included() -> None:
    cache = allocate_kv_cache(3, 6, 16, 2, 32, torch.int8)
    cache.storage.random_(0, 256)
    host = torch.zeros(3, 4, cache.storage.shape[2], dtype=torch.uint8)
    before = cache.storage.clone()

    move_blocks(cache.storage, host, [(5, 0), (1, 3)])
    cache.storage[:, [1, 5]] = 0
    move_blocks(host, cache.storage, [(0, 5), (3, 1)])

    assert torch.equal(cache.storage, before)
