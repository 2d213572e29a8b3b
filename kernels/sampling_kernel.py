"""The Triton kernel of `sampling.py`: one program draws one row, without sorting it.

    pass 1   the largest logit, the lowest id that has it, whether there is a NaN
    pass 2   what can matter is copied out, by rising id; the rest is too unlikely to be drawn, and all of
             it together too light to move top_p
    then     on these few: the value of the k-th largest, the value at which top_p is reached, and the argmax
             of logit + noise over what is kept

A value is searched 4 bits at a time, in 8 rounds, over the bits of the logits mapped to integers of the
same order: each round sums, over the candidates, how many (top-k) or how much (top-p) lies at or above each
of 16 values. So ties are exact, and sums are made in one order whatever else is in the batch: no atomics.

Two passes over the vocabulary are read from memory (the second mostly from L2); the rest is small unless
the distribution is flat.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch

from .dispatch import jit, tl

BLOCK = 2048
FEW = 512
"""Candidates that a program looks at at once."""


@jit
@no_type_check
def _mix(h):
    """The finalizer of MurmurHash3, on uint32."""
    h = tl.mul(h ^ (h >> 16), 0x85EBCA6B, sanitize_overflow=False)
    h = tl.mul(h ^ (h >> 13), 0xC2B2AE35, sanitize_overflow=False)
    return h ^ (h >> 16)


@jit
@no_type_check
def _gumbel(seed_low, seed_high, position, token):
    h = _mix(seed_low ^ 0x9E3779B9)
    h = _mix(h ^ seed_high)
    h = _mix(h ^ position)
    h = _mix(token.to(tl.uint32) ^ h)
    u = ((h >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08
    return -tl.log(-tl.log(u))


@jit
@no_type_check
def _order(x):
    """uint32 that compare as the floats do."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)


@jit
@no_type_check
def _weights(LOGITS, first, count, floor, largest, temperature, BY_MASS: tl.constexpr, FEW: tl.constexpr):
    """The orders of some candidates, and what each counts: 1 or its mass; 0 for those below `floor`."""
    at = first + tl.arange(0, FEW)
    x = tl.load(LOGITS + at, mask=at < count, other=float("-inf"))
    order = _order(x)
    weight = tl.where((at < count) & (order >= floor), 1.0, 0.0)
    if BY_MASS:
        weight *= tl.exp((x - largest) / temperature)
    return order, weight


@jit
@no_type_check
def _search(LOGITS, count, floor, target, largest, temperature, BY_MASS: tl.constexpr, FEW: tl.constexpr):
    """The highest order such that those at or above it count `target`, and what those strictly above it
    count. If all do not, order 0."""
    found = tl.full([], 0, tl.uint32)
    sixteen = tl.arange(0, 16)
    for digit in tl.static_range(8):
        edges = found + (sixteen.to(tl.uint32) << (28 - 4 * digit))
        sums = tl.zeros([16], tl.float32)
        for first in range(0, count, FEW):
            order, weight = _weights(LOGITS, first, count, floor, largest, temperature, BY_MASS, FEW)
            sums += tl.sum(tl.where(order[:, None] >= edges[None, :], weight[:, None], 0.0), 0)
        reached = tl.max(tl.where(sums >= target, sixteen, 0), 0)
        found += reached.to(tl.uint32) << (28 - 4 * digit)
    above = 0.0
    for first in range(0, count, FEW):
        order, weight = _weights(LOGITS, first, count, floor, largest, temperature, BY_MASS, FEW)
        above += tl.sum(tl.where(order > found, weight, 0.0), 0)
    return found, above


@jit
@no_type_check
def _mass(order, largest, temperature):
    """Of one candidate of this order."""
    bits = order.to(tl.int32, bitcast=True)
    bits = bits ^ ((~bits >> 31) | -2147483648)
    return tl.exp((bits.to(tl.float32, bitcast=True) - largest) / temperature)


@jit
@no_type_check
def _sample_kernel(
    LOGITS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    SEED,
    POSITION,
    DRAWN,
    FEW_LOGITS,
    FEW_IDS,
    size,
    mass_depth,
    noise_depth,
    BLOCK: tl.constexpr,
    FEW: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = LOGITS + row * size
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.zeros([BLOCK], tl.int32)
    has_nan = tl.zeros([BLOCK], tl.int32)
    for first in range(0, size, BLOCK):
        x = tl.load(logits + first + lane, mask=first + lane < size, other=float("-inf"))
        has_nan |= (x != x).to(tl.int32)
        is_better = x > best
        best = tl.where(is_better, x, best)
        best_id = tl.where(is_better, first + lane, best_id)
    largest = tl.max(best, 0)
    drawn = tl.min(tl.where(best == largest, best_id, size), 0)
    temperature = tl.load(TEMPERATURE + row)
    is_sound = (tl.max(has_nan, 0) == 0) & (tl.abs(largest) < float("inf"))
    if is_sound & (temperature > 0.0):
        top_k, top_p = tl.load(TOP_K + row), tl.load(TOP_P + row)
        few_logits, few_ids = FEW_LOGITS + row * size, FEW_IDS + row * size
        depth = tl.where(top_p < 1.0, mass_depth, noise_depth)
        count = tl.full([], 0, tl.int32)
        total = 0.0
        for first in range(0, size, BLOCK):
            at = first + lane
            x = tl.load(logits + at, mask=at < size, other=float("-inf"))
            z = (x - largest) / temperature
            total += tl.sum(tl.exp(z), 0)
            is_near = (z >= depth) & (at < size)
            place = count + tl.cumsum(is_near.to(tl.int32), 0) - 1
            tl.store(few_logits + place, x, mask=is_near)
            tl.store(few_ids + place, at, mask=is_near)
            count += tl.sum(is_near.to(tl.int32), 0)
        # What one lane wrote, another reads.
        tl.debug_barrier()

        # Kept: the orders above `edge`, and the first `num_equal` that equal it.
        edge = tl.full([], 0, tl.uint32)
        num_equal = count
        if (top_k > 0) & (top_k < count):
            edge, above = _search(
                few_logits, count, edge, top_k.to(tl.float32), largest, temperature, False, FEW
            )
            num_equal = top_k - above.to(tl.int32)
        if top_p < 1.0:
            if (top_k > 0) & (top_k < size):
                # top_p is of what top_k has left.
                total = num_equal.to(tl.float32) * tl.where(edge > 0, _mass(edge, largest, temperature), 0.0)
                for first in range(0, count, FEW):
                    order, weight = _weights(few_logits, first, count, edge, largest, temperature, True, FEW)
                    total += tl.sum(tl.where(order > edge, weight, 0.0), 0)
            enough = top_p * total
            p_edge, above = _search(few_logits, count, edge, enough, largest, temperature, True, FEW)
            needed = tl.maximum(tl.ceil((enough - above) / _mass(p_edge, largest, temperature)), 1.0)
            if p_edge > edge:
                num_equal = tl.minimum(needed, count.to(tl.float32)).to(tl.int32)
            elif p_edge == edge:
                num_equal = tl.minimum(needed, num_equal.to(tl.float32)).to(tl.int32)
            # Else rounding keeps the sum below top_p: everything stays.
            edge = tl.where(p_edge > edge, p_edge, edge)

        min_z = tl.log(tl.load(MIN_P + row))
        seed, position = tl.load(SEED + row), tl.load(POSITION + row)
        seed_low, seed_high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
        few = tl.arange(0, FEW)
        top = tl.full([FEW], float("-inf"), tl.float32)
        top_id = tl.zeros([FEW], tl.int32)
        num_seen = tl.full([], 0, tl.int32)
        for first in range(0, count, FEW):
            is_one = first + few < count
            x = tl.load(few_logits + first + few, mask=is_one, other=float("-inf"))
            token = tl.load(few_ids + first + few, mask=is_one, other=0)
            order, z = _order(x), (x - largest) / temperature
            equals = ((order == edge) & is_one).to(tl.int32)
            is_early = (equals == 1) & (num_seen + tl.cumsum(equals, 0) <= num_equal)
            num_seen += tl.sum(equals, 0)
            is_kept = is_one & ((order > edge) | is_early) & (z >= min_z)
            score = z + _gumbel(seed_low, seed_high, position.to(tl.uint32), token)
            is_higher = is_kept & (score > top)
            top = tl.where(is_higher, score, top)
            top_id = tl.where(is_higher, token, top_id)
        winner = tl.max(top, 0)
        tl.store(DRAWN + row, tl.min(tl.where(top == winner, top_id, size), 0).to(tl.int64))
    else:
        tl.store(DRAWN + row, tl.where(is_sound, drawn, -1).to(tl.int64))


def launch_sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    noise_range: float,
) -> torch.Tensor:
    """`logits` `[rows, vocabulary]` fp32, the rest `[rows]`; see `sampling.py`."""
    rows, size = logits.shape
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        few_logits = torch.empty_like(logits)
        few_ids = torch.empty(logits.shape, dtype=torch.int32, device=logits.device)
        _sample_kernel[(rows,)](
            logits,
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            position,
            drawn,
            few_logits,
            few_ids,
            size,
            # All tokens below this together weigh less than fp32 can tell from nothing.
            -(17.0 + math.log(size)),
            -noise_range,
            BLOCK=BLOCK,
            FEW=FEW,
            num_warps=8,
        )
    return drawn
