"""From logits to tokens: what each choice has drawn so far, what that does to its logits, and the draw.

    raw scores ─▶ bias, penalties, bans ─▶ temperature, top-k, top-p, min-p ─▶ draw ─▶ mask

A draw is keyed by the choice's seed and the number of the token in its answer (`kernels/sampling.py`), so it
is the same in any batch, after any pre-emption, and with or without drafts.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from edgecloud.errors import EdgeCloudError, EngineFailure
from edgecloud.kernels.sampling import Sampling, sample
from edgecloud.vocabulary import TokenScore

from .runner import Draw, Drawing, TokenMask

REPEAT_WINDOW = 64


@dataclass(slots=True)
class Choice:
    """One answer in the making: its tokens, how often each was drawn, its own seed and place in a grammar."""

    seed: int
    mask: TokenMask | None
    tokens: list[int] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)

    def take(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.counts.update(tokens)


class DrawingState:
    """What the draws of one request need, by choice; pre-emption and swapping leave it alone."""

    def __init__(self, prompt: tuple[int, ...], drawing: Drawing) -> None:
        self.prompt = prompt
        self.drawing = drawing
        # Prompt tokens scored so far; the first has nothing before it that could score it.
        self.num_scored = 1
        self._seed = secrets.randbits(63) if drawing.seed is None else drawing.seed
        self._choices: dict[int, Choice] = {}

    def choice(self, index: int) -> Choice:
        if index not in self._choices:
            digest = hashlib.blake2b(f"{self._seed}/{index}".encode(), digest_size=8).digest()
            mask = self.drawing.mask
            self._choices[index] = Choice(
                int.from_bytes(digest, "little", signed=True), mask.clone() if mask else None
            )
        return self._choices[index]


class Row(NamedTuple):
    """One row of logits to draw from: for `choice` of a request, after `ahead`, drafts that may yet fall."""

    state: DrawingState
    choice: Choice
    ahead: tuple[int, ...] = ()


class Sampler:
    """Draws for a batch. `vocab_size` is the width of the logits."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device

    def draw(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int | EdgeCloudError]:
        """A token per row of `logits` (float32 [rows, vocabulary], overwritten), or why there is none."""
        for index, row in enumerate(rows):
            self._edit(logits[index], row)
        drawn: list[int | EdgeCloudError] = []
        for index, token in enumerate(self._sample(logits, rows)):
            if token < 0:
                drawn.append(EngineFailure("The model's output was not a number: this answer is lost."))
            elif rows[index].choice.mask is None:
                drawn.append(token)
            else:
                drawn.append(self._obey(logits[index : index + 1], rows[index], token))
        return drawn

    def _sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
        def column(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=self._device)

        how = Sampling(
            column([row.state.drawing.temperature for row in rows], torch.float32),
            column([row.state.drawing.top_k for row in rows], torch.int32),
            column([row.state.drawing.top_p for row in rows], torch.float32),
            column([row.state.drawing.min_p for row in rows], torch.float32),
            column([row.choice.seed for row in rows], torch.int64),
            column([len(row.choice.tokens) + len(row.ahead) for row in rows], torch.int64),
        )
        tokens: list[int] = sample(logits, how).tolist()
        return tokens

    def _edit(self, logits: torch.Tensor, row: Row) -> None:
        drawing, choice = row.state.drawing, row.choice
        if drawing.logit_bias:
            ids, values = zip(*drawing.logit_bias.items(), strict=True)
            logits[list(ids)] += torch.tensor(values, dtype=torch.float32, device=self._device)
        if drawing.repeat_penalty != 1.0:
            text = [*row.state.prompt[-REPEAT_WINDOW:], *choice.tokens[-REPEAT_WINDOW:], *row.ahead]
            seen = list(set(text[-REPEAT_WINDOW:]))
            old = logits[seen]
            logits[seen] = torch.where(old > 0, old / drawing.repeat_penalty, old * drawing.repeat_penalty)
        if drawing.presence_penalty or drawing.frequency_penalty:
            counts = choice.counts + Counter(row.ahead) if row.ahead else choice.counts
            if counts:
                number = torch.tensor(list(counts.values()), dtype=torch.float32, device=self._device)
                logits[list(counts)] -= number * drawing.frequency_penalty + drawing.presence_penalty
        banned = drawing.banned
        if len(choice.tokens) + len(row.ahead) < drawing.min_tokens:
            banned = banned | drawing.stop_ids
        if banned:
            logits[list(banned)] = -torch.inf

    def _obey(self, logits: torch.Tensor, row: Row, token: int) -> int | EdgeCloudError:
        """The token if the mask allows it, else one drawn among those that it allows.

        The noise is keyed by token, so that is the token that would have won among the allowed from the
        start. Most draws already obey, and asking about one token is a thousand times cheaper than about all.
        """
        mask = row.choice.mask
        assert mask is not None
        try:
            if row.ahead:
                mask = mask.clone()
                for draft in row.ahead:
                    if draft in row.state.drawing.stop_ids or not mask.allows(draft):
                        return token  # the draft before this row falls, and the row with it
                    mask.accept(draft)
            if mask.allows(token):
                return token
            packed = torch.frombuffer(bytearray(mask.allowed()), dtype=torch.uint8)
        except EdgeCloudError as error:
            return error
        bits = (packed.unsqueeze(1) >> torch.arange(8) & 1).flatten()[: self._vocab_size]
        # Where a model has more logits than its tokenizer has tokens, those beyond are not allowed.
        banned = torch.ones(self._vocab_size, dtype=torch.bool)
        banned[: len(bits)] = bits == 0
        logits.masked_fill_(banned.to(self._device), -torch.inf)
        (obedient,) = self._sample(logits, [row])
        if obedient >= 0:
            return obedient
        # Nothing is allowed but the end, and the end was banned: it is over all the same.
        ends = row.state.drawing.stop_ids or row.state.drawing.banned
        return min(ends) if ends else EngineFailure("The answer can't be continued as its schema asks.")


def walk(row: Row, drawn: Sequence[int], drafts: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """The tokens that stand of a run of draws, of which all but the first were made behind `drafts`, and
    whether the last ends the choice: up to the first that is not as drafted, or is an end."""
    drawing, kept = row.state.drawing, 0
    for kept, token in enumerate(drawn, 1):
        if token in drawing.stop_ids or token in drawing.banned:
            return tuple(drawn[:kept]), True
        if kept > len(drafts) or token != drafts[kept - 1]:
            break
    return tuple(drawn[:kept]), False


def commit(row: Row, tokens: tuple[int, ...], stop: bool, scores: tuple[TokenScore, ...]) -> Draw:
    """Advance the choice by what stands. Raises what its mask raises."""
    row.choice.take(tokens)
    if row.choice.mask is not None:
        for token in tokens[:-1] if stop else tokens:
            row.choice.mask.accept(token)
    return Draw(tokens, stop, scores)


def score(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenScore]:
    """Natural-log probabilities of one token a row, and of the `tops` likeliest of that row.

    `logits` float32 [rows, vocabulary], before anything was done to them.
    """
    if not tokens:
        return []
    # A row at a time: over a matrix, torch cuts the sum among threads by how many rows there are.
    normaliser = torch.stack([torch.logsumexp(row, dim=0) for row in logits])
    own = logits[torch.arange(len(tokens)), torch.tensor(tokens, device=logits.device)] - normaliser
    most = max(tops)
    if most == 0:
        return [TokenScore(token, value) for token, value in zip(tokens, own.tolist(), strict=True)]
    values, ids = torch.topk(logits, most, dim=1)
    likeliest = (values - normaliser.unsqueeze(1)).tolist()
    return [
        TokenScore(token, value, tuple(zip(row_ids[:top], row_values[:top], strict=True)))
        for token, value, row_ids, row_values, top in zip(
            tokens, own.tolist(), ids.tolist(), likeliest, tops, strict=True
        )
    ]
