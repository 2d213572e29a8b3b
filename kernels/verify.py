"""How many drafted tokens stand, when drafts are certain guesses (n-grams, a greedy draft).

    drawn[i] ~ p_i for each row of a request; accepted = the number of leading i with drawn[i] = draft[i]

The request's tokens are then drawn[0 … accepted]. That is rejection sampling (Leviathan et al. 2023) for a
draft distribution q that is all on one token x: x is accepted with probability min(1, p(x)/q(x)) = p(x),
and what is drawn instead comes from max(p - q, 0), which is p without x. And because a draw is keyed by its
position (`sampling.py`), the text is token for token the one that would have come without drafts.
"""

from __future__ import annotations

from typing import no_type_check

import torch

from .dispatch import jit, on_triton, require, tl

BLOCK = 32


def verify_drafts_reference(drawn: torch.Tensor, drafts: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    counts = []
    for start, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        count = 0
        while start + count < end - 1 and drawn[start + count] == drafts[start + count]:
            count += 1
        counts.append(count)
    return torch.tensor(counts, dtype=torch.int32)


def verify_drafts_cpu(drawn: torch.Tensor, drafts: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The first row at or after a request's start that differs, found for all of them in one search."""
    differs = drawn != drafts
    differs[offsets[1:] - 1] = True
    ends = differs.nonzero().squeeze(1)
    return (ends[torch.searchsorted(ends, offsets[:-1].long())] - offsets[:-1]).to(torch.int32)


@jit
@no_type_check
def _verify_drafts_kernel(DRAWN, DRAFTS, OFFSETS, ACCEPTED, BLOCK: tl.constexpr):
    request = tl.program_id(0)
    start = tl.load(OFFSETS + request)
    num_drafts = tl.load(OFFSETS + request + 1) - start - 1
    accepted = num_drafts
    at = tl.arange(0, BLOCK)
    for first in range(0, num_drafts, BLOCK):
        is_draft = first + at < num_drafts
        drawn = tl.load(DRAWN + start + first + at, mask=is_draft, other=0)
        draft = tl.load(DRAFTS + start + first + at, mask=is_draft, other=0)
        accepted = tl.minimum(accepted, tl.min(tl.where(drawn == draft, num_drafts, first + at), 0))
    tl.store(ACCEPTED + request, accepted)


def verify_drafts(drawn: torch.Tensor, drafts: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Accepted drafts of each request, `[requests]` int32.

    `drawn` and `drafts` are `[rows]` int64: request r owns the rows `offsets[r]` to `offsets[r + 1]`, at
    least one, one more than its drafts; the draft of its last row is not looked at. Raises `ValueError` for
    shapes.
    """
    require(
        drawn.shape == drafts.shape and drawn.dim() == 1,
        f"drawn {tuple(drawn.shape)}, drafts {drafts.shape}.",
    )
    if on_triton(drawn):
        accepted = torch.empty(len(offsets) - 1, dtype=torch.int32, device=drawn.device)
        if len(accepted):
            offsets = offsets.to(torch.int32)
            _verify_drafts_kernel[(len(accepted),)](
                drawn, drafts, offsets, accepted, BLOCK=BLOCK, num_warps=1
            )
        return accepted
    return verify_drafts_cpu(drawn, drafts, offsets)
