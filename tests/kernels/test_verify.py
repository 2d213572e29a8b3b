"""Drafts stand until the first that was not drawn."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgecloud.kernels.verify import verify_drafts, verify_drafts_reference


def test_none_some_all_and_no_drafts() -> None:
    drawn = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8])
    drafts = torch.tensor([9, 2, -1, 4, 9, -1, 7, -1])
    offsets = torch.tensor([0, 3, 6, 8], dtype=torch.int32)

    assert verify_drafts(drawn, drafts, offsets).tolist() == [0, 1, 1]
    assert verify_drafts(drawn[:1], drafts[:1], torch.tensor([0, 1], dtype=torch.int32)).tolist() == [0]


def test_the_draft_of_the_last_row_is_not_looked_at() -> None:
    drawn = torch.tensor([5, 6, 7])

    assert verify_drafts(drawn, drawn, torch.tensor([0, 3], dtype=torch.int32)).tolist() == [2]


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mix_of_counts(counts: list[int], seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 2, (sum(counts),), generator=source)
    drafts = torch.where(torch.rand(len(drawn), generator=source) < 0.9, drawn, 1 - drawn)
    offsets = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)

    assert torch.equal(verify_drafts(drawn, drafts, offsets), verify_drafts_reference(drawn, drafts, offsets))
