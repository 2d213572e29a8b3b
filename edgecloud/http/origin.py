"""Where an answer came from, as response headers: what is known when it starts, and the rest at its end."""

from __future__ import annotations

from collections.abc import Sequence

from edgecloud.types import Receipt, Start

Headers = list[tuple[bytes, bytes]]

NAMES = (
    b"x-edgecloud-id",
    b"x-edgecloud-route",
    b"x-edgecloud-model",
    b"x-edgecloud-reason",
    b"x-edgecloud-cached-tokens",
    b"x-edgecloud-cache",
    b"x-edgecloud-attempts",
    b"x-edgecloud-cost",
)


def start_headers(start: Start) -> Headers:
    """What a stream can say before its first token."""
    told = [(b"x-edgecloud-route", start.engine), (b"x-edgecloud-model", start.model)]
    if start.id:
        told += [(b"x-edgecloud-id", start.id), (b"x-edgecloud-reason", start.reason)]
    return [(name, _value(text)) for name, text in told]


def end_headers(receipts: Sequence[Receipt], cached_tokens: int) -> Headers:
    """What is known when the answer is whole; several prompts of one request are summed up."""
    told = [(b"x-edgecloud-cached-tokens", str(cached_tokens))]
    if receipts:
        attempts = [f"{each.engine}={each.outcome}" for receipt in receipts for each in receipt.attempts]
        verdicts = dict.fromkeys(receipt.cache.verdict for receipt in receipts)
        told += [
            (b"x-edgecloud-cache", ", ".join(verdicts)),
            (b"x-edgecloud-attempts", ", ".join(attempts)),
            (b"x-edgecloud-cost", f"{sum(each.cost for each in receipts):.9f} {receipts[0].currency}"),
        ]
    return [(name, _value(text)) for name, text in told]


def _value(text: str) -> bytes:
    return "".join(c if " " <= c <= "~" else "?" for c in text[:200]).encode()
