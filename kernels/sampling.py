"""Drawing the next token of each row, without sorting the vocabulary.

    z = logits / temperature; keep the top_k largest; of these the smallest set with mass >= top_p;
    of these the ones with p >= min_p * max(p); draw argmax over the kept of z[v] + g(seed, position, v)

where g = -log(-log(u)) is Gumbel noise (Gumbel-max: the argmax is distributed as softmax(z)), and u comes
from a hash of the row's seed, the token's position in its text and the token id. So a draw depends on
nothing else: not on the batch, nor on what was drawn before it. Among equal values the lower id comes
first, everywhere. Temperature 0 is the argmax; top_k 0, top_p 1 and min_p 0 keep everything.

`logits` is `[rows, vocabulary]` fp32. A row with a NaN, or with no finite logit, has no answer: its token
is -1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from .dispatch import on_triton, require
from .sampling_kernel import launch_sample

NOISE_RANGE = 21.0
"""Above the largest minus the smallest g that 24 bits of u can give (17.33 + 2.86): a token whose z is that
far below the row's largest can't win, so its noise needs no computing."""


class Sampling(NamedTuple):
    """How each row is drawn, all `[rows]`: temperature, top_p and min_p fp32, top_k int32, seed and position
    int64."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor


def sample_reference(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
    """By sorting, in fp64, a row at a time."""
    drawn = []
    for row, z in enumerate(logits.double()):
        if z.isnan().any() or z.max() in (float("inf"), -float("inf")):
            drawn.append(-1)
        elif how.temperature[row] == 0:
            drawn.append(int(z.argmax()))
        else:
            kept = kept_reference(z, *(float(each[row]) for each in how[:4]))
            seed, position = int(how.seed[row]), int(how.position[row])
            noise = gumbel(seed, position, kept.to(torch.int32)).double()
            best = z[kept] / how.temperature[row].double() + noise
            drawn.append(int(kept[best == best.max()].min()))
    return torch.tensor(drawn)


def kept_reference(
    z: torch.Tensor, temperature: float, top_k: float, top_p: float, min_p: float
) -> torch.Tensor:
    """The ids that one row's filters leave, by falling logit; `z` is the row in fp64."""
    values, ids = torch.sort(z / temperature, descending=True, stable=True)
    if top_k > 0:
        values, ids = values[: int(top_k)], ids[: int(top_k)]
    p = torch.softmax(values, 0)
    if top_p < 1:
        num_kept = int((p.cumsum(0) < top_p).sum()) + 1
        p, ids = p[:num_kept], ids[:num_kept]
    return ids[p >= min_p * p[0]]


def uniform(seed: int, position: int, token: torch.Tensor) -> torch.Tensor:
    """u in (0, 1), fp32, from 24 bits of a hash of seed, position and each int32 token: MurmurHash3's
    finalizer over 32-bit words, each word mixed into the hash of those before it."""
    return _uniform(token ^ _signed(_row_key(seed, position)))


def gumbel(seed: int, position: int, token: torch.Tensor) -> torch.Tensor:
    """g of each token, fp32."""
    return uniform(seed, position, token).log_().neg_().log_().neg_()


def _row_key(seed: int, position: int) -> int:
    h = _mix(seed & 0xFFFFFFFF ^ 0x9E3779B9)
    h = _mix(h ^ seed >> 32 & 0xFFFFFFFF)
    return _mix(h ^ position & 0xFFFFFFFF)


def _mix(h: int) -> int:
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def _signed(word: int) -> int:
    """The int32 that has these 32 bits."""
    return word - (word >> 31 << 32)


def _uniform(h: torch.Tensor) -> torch.Tensor:
    """`_mix` on int32, in place: products wrap, and shifts bring in the sign, which the masks take away."""
    h ^= (h >> 16).bitwise_and_(0xFFFF)
    h *= _signed(0x85EBCA6B)
    h ^= (h >> 13).bitwise_and_(0x7FFFF)
    h *= _signed(0xC2B2AE35)
    h ^= (h >> 16).bitwise_and_(0xFFFF)
    return (h >> 8).bitwise_and_(0xFFFFFF).float().add_(0.5).mul_(2.0**-24)


def sample_cpu(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
    """Greedy rows at once, and those without a filter. Of the others, the few tokens that can be drawn."""
    drawn, largest = argmax_rows(logits)
    # A NaN makes the row's largest a NaN; without a finite logit it is infinite.
    drawn.masked_fill_(~largest.isfinite(), -1)
    plain: list[int] = []
    settings = zip(*(each.tolist() for each in how), strict=True)
    for row, (temperature, top_k, top_p, min_p, seed, position) in enumerate(settings):
        if temperature == 0 or drawn[row] < 0:
            continue
        if not top_k and top_p == 1 and not min_p:
            plain.append(row)
        else:
            drawn[row] = _draw(logits[row], largest[row], temperature, top_k, top_p, min_p, seed, position)
    for start in range(0, len(plain), 16):
        rows = plain[start : start + 16]
        keys = [_signed(_row_key(int(how.seed[row]), int(how.position[row]))) for row in rows]
        token = torch.arange(logits.shape[1], dtype=torch.int32)
        noise = _uniform(token ^ torch.tensor(keys, dtype=torch.int32).unsqueeze(1))
        noise.log_().neg_().log_()
        keyed = (logits[rows] - largest[rows].unsqueeze(1)).div_(how.temperature[rows].unsqueeze(1))
        drawn[rows] = argmax_rows(keyed.sub_(noise))[0]
    return drawn


def argmax_rows(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest id of each row's largest value, and that value: first the largest of each 64, which is fast.
    (`torch.argmax` over a long row is not vectorised.)"""
    rows, size = logits.shape
    if size % 64:
        largest = logits.amax(1)
        return logits.argmax(1), largest
    parts = logits.view(rows, -1, 64)
    tops = parts.amax(2)
    largest, part = tops.amax(1), tops.argmax(1)
    within = parts[torch.arange(rows, device=logits.device), part].argmax(1)
    return part * 64 + within, largest


def _draw(
    logits: torch.Tensor,
    largest: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
) -> torch.Tensor:
    """One row. A token at z = max + log(w) is at most w of the mass: with w below (1 - top_p) / V no such
    tokens together are more than 1 - top_p, so none of them is in the smallest set that has top_p."""
    size = len(logits)
    has_top_k = 0 < top_k < size
    if has_top_k:
        ids = _first(logits, logits.topk(top_k).values[-1], top_k)
    else:
        depth = -NOISE_RANGE
        if top_p < 1:
            depth = min(depth, math.log((1 - top_p) / size))
        if min_p > 0:
            depth = max(depth, math.log(min_p))
        ids = (logits >= largest + depth * temperature).nonzero().squeeze(1)
    values = logits[ids]
    if top_p < 1:
        every = values if has_top_k else logits
        total = (every - largest).div_(temperature).exp_().sum()
        kept = _nucleus(values, largest, temperature, float(total) * top_p)
        values, ids = values[kept], ids[kept]
    z = (values - largest) / temperature
    if min_p > 0:
        near = z >= math.log(min_p)
        z, ids = z[near], ids[near]
    keyed = z + gumbel(seed, position, ids.to(torch.int32))
    return ids[keyed == keyed.max()].min()


def _first(values: torch.Tensor, edge: torch.Tensor, count: int) -> torch.Tensor:
    """Where the `count` largest values are, the least of which is `edge`: of its equals the first."""
    above = (values > edge).nonzero().squeeze(1)
    equal = (values == edge).nonzero().squeeze(1)[: count - len(above)]
    return torch.cat((above, equal)).sort().values


def _nucleus(values: torch.Tensor, largest: torch.Tensor, temperature: float, enough: float) -> torch.Tensor:
    """Where the fewest values are that have mass `enough`. It is nearly always a handful, so few are
    sorted."""
    for num_sorted in (256, 4096, len(values)):
        top = values.topk(min(num_sorted, len(values))).values
        mass = ((top - largest) / temperature).exp_().double().cumsum(0)
        count = int((mass < enough).sum()) + 1
        if count <= len(top):
            return _first(values, top[count - 1], count)
    return torch.arange(len(values))


def sample(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
    """The drawn token of each row, `[rows]` int64; -1 where the row has a NaN or nothing finite.

    Raises `ValueError` for another type or shapes that don't fit.
    """
    require(
        logits.dim() == 2 and logits.dtype == torch.float32 and logits.is_contiguous(),
        f"logits are {logits.dtype} {tuple(logits.shape)}: contiguous fp32 [rows, vocabulary].",
    )
    require(
        all(each.shape == (len(logits),) for each in how),
        f"{len(logits)} rows of logits, and settings of {[len(each) for each in how]}.",
    )
    if on_triton(logits):
        return launch_sample(logits, *how, NOISE_RANGE)
    return sample_cpu(logits, how)
