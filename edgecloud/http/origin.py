"""Where an answer came from, as response headers: what is known when it starts, and the rest at its end."""

from __future__ import annotations

from collections.abc import Sequence

from edgecloud.types import CacheInfo, Notice, Receipt, Start

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
    b"x-edgecloud-notice",
)


def start_headers(starts: Sequence[Start]) -> Headers:
    """What a stream can say before its first token; of several prompts, who answers the first one."""
    start = starts[0]
    told = [(b"x-edgecloud-route", start.engine), (b"x-edgecloud-model", start.model)]
    if start.id:
        told += [(b"x-edgecloud-id", start.id), (b"x-edgecloud-reason", start.reason)]
    if start.cache is not None:
        verdicts = dict.fromkeys(_kept(each.cache) for each in starts if each.cache is not None)
        told.append((b"x-edgecloud-cache", ", ".join(verdicts)))
    return [(name, _value(text)) for name, text in told]


def end_headers(receipts: Sequence[Receipt], cached_tokens: int, notices: Sequence[Notice]) -> Headers:
    """What is known when the answer is whole; several prompts of one request are summed up."""
    told = [(b"x-edgecloud-cached-tokens", str(cached_tokens))]
    if receipts:
        attempts = [f"{each.engine}={each.outcome}" for receipt in receipts for each in receipt.attempts]
        told += [
            (b"x-edgecloud-attempts", ", ".join(attempts)),
            (b"x-edgecloud-cost", f"{sum(each.cost for each in receipts):.9f} {receipts[0].currency}"),
        ]
    if notices:
        told.append((b"x-edgecloud-notice", "; ".join(map(notice_line, notices))))
    return [(name, _value(text)) for name, text in told]


def notice_line(notice: Notice) -> str:
    """What happened on the way, in a line."""
    return f"{notice.kind}: {notice.text}"


def _kept(cache: CacheInfo) -> str:
    """The verdict; of a kept answer also how near its question is, how sure it was, its age and its id."""
    if cache.entry_id is None:
        return cache.verdict
    return (
        f"{cache.verdict}; sim={cache.similarity or 0.0:.3f}; p={cache.probability or 0.0:.3f}; "
        f"age={cache.age_s or 0.0:.0f}; id={cache.entry_id}"
    )


def _value(text: str) -> bytes:
    return "".join(c if " " <= c <= "~" else "?" for c in text[:200]).encode()
