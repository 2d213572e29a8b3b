"""The text side of a model: text to token ids and back, and how a token looks in an answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from edgecloud.errors import BadRequest
from edgecloud.types import TextDelta, TokenLogprob, TopLogprob


class Vocabulary(Protocol):
    """What every model of ours has, whatever computes it. `eog_ids` end an answer."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def bos(self) -> int:
        """The token that begins a text; -1 where there is none."""

    @property
    def adds_bos(self) -> bool:
        """Whether the model wants `bos` before every prompt."""

    @property
    def eog_ids(self) -> frozenset[int]: ...

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """`parse_special` reads control tokens that are spelled in the text as such."""

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """The token's bytes, which may be half a character; a control token's only with `special`."""

    def detokenize(self, ids: Sequence[int], *, special: bool = True) -> bytes: ...


class TokenScore(NamedTuple):
    """A token's natural-log probability under the model's own distribution, and the likeliest tokens with
    theirs, falling.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def check_ids(vocabulary: Vocabulary, ids: Iterable[int], param: str) -> None:
    """Raises `BadRequest` for a token that the vocabulary does not have."""
    for token in ids:
        if not 0 <= token < vocabulary.n_vocab:
            raise BadRequest(
                f"{param} holds token {token}, but the vocabulary of this model has "
                f"{vocabulary.n_vocab} tokens.",
                param=param,
            )


def token_logprob(vocabulary: Vocabulary, score: TokenScore) -> TokenLogprob:
    """A score as events carry it."""
    text, data = _text_and_bytes(vocabulary, score.token_id)
    top = []
    for token, logprob in score.top:
        top_text, top_data = _text_and_bytes(vocabulary, token)
        top.append(TopLogprob(top_text, logprob, top_data, token))
    return TokenLogprob(text, score.logprob, data, score.token_id, tuple(top))


def echoed(
    vocabulary: Vocabulary, prompt: Sequence[int], choice: int, scores: Sequence[TokenScore] | None
) -> list[TextDelta]:
    """The prompt as the beginning of a choice; `scores` are those of its tokens from the second on."""
    text = vocabulary.detokenize(prompt).decode("utf-8", errors="replace")
    logprobs: tuple[TokenLogprob, ...] = ()
    if scores is not None:
        # Nothing comes before the first token, so it has no probability.
        first = _text_and_bytes(vocabulary, prompt[0])
        logprobs = (
            TokenLogprob(first[0], math.nan, first[1], prompt[0]),
            *(token_logprob(vocabulary, score) for score in scores),
        )
    return [TextDelta(text, choice, logprobs, num_tokens=0)] if text else []


def _text_and_bytes(vocabulary: Vocabulary, token: int) -> tuple[str, bytes]:
    data = vocabulary.token_bytes(token, special=True)
    return data.decode("utf-8", errors="replace"), data
