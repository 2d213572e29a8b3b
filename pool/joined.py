"""Pieces of one answer that arrived together, as one event: for a caller who sees nothing before its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edgecloud.errors import EdgeCloudError
from edgecloud.types import EngineEvent, ReasoningDelta, TextDelta

Piece = TextDelta | ReasoningDelta


def joined(events: Iterable[EngineEvent]) -> Iterator[EngineEvent]:
    """The same events, pieces of text of one kind and choice that follow each other as one.

    Tokens and logprobs are all there. Where `events` break off with an error, what came before it comes too.
    """
    held: list[Piece] = []
    try:
        for event in events:
            piece = event if isinstance(event, TextDelta | ReasoningDelta) else None
            if held and (piece is None or type(piece) is not type(held[0]) or piece.index != held[0].index):
                yield _one(held)
                held = []
            if piece is None:
                yield event
            else:
                held.append(piece)
    except EdgeCloudError:
        if held:
            yield _one(held)
        raise
    if held:
        yield _one(held)


def _one(pieces: list[Piece]) -> Piece:
    first = pieces[0]
    if len(pieces) == 1:
        return first
    text = "".join(piece.text for piece in pieces)
    num_tokens = sum(piece.num_tokens for piece in pieces)
    if isinstance(first, ReasoningDelta):
        return ReasoningDelta(text, first.index, num_tokens=num_tokens)
    logprobs = tuple(entry for piece in pieces for entry in getattr(piece, "logprobs", ()))
    return TextDelta(text, first.index, logprobs, num_tokens)
