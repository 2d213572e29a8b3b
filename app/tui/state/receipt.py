"""A receipt in words: one quiet line, and the whole of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rich.cells import cell_len

from edgecloud import units
from edgecloud.types import Attempt, CacheInfo, Receipt

_SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£", "CNY": "¥", "JPY": "¥"}


_LEAST_FIRST = ("reused", "pace", "hint", "count", "how", "price")
"""What a narrow screen does without, in this order; where an answer came from is never left out."""


def line(receipt: Receipt, *, hint: str = "", width: int | None = None) -> str:
    """Where it came from, at what price, how fast, how much, and what can be done about it, on one line.

    What does not fit in `width` cells is left out whole, the least important first.
    """
    reused = f" ({receipt.cached_tokens:,} reused)" if receipt.cached_tokens else ""
    num_tokens = receipt.prompt_tokens + receipt.completion_tokens
    first = f" · first word {seconds(receipt.ttft_s)}" if receipt.completion_tokens else ""
    parts = {
        "where": where(receipt),
        "price": f" · {money(receipt.cost, receipt.currency)}",
        "how": f" · {cache(receipt.cache)}" if is_hit(receipt) else first,
        "pace": "" if is_hit(receipt) else speed(receipt),
        "count": f" · {receipt.prompt_tokens:,} in, {receipt.completion_tokens:,} out" if num_tokens else "",
        "reused": reused,
        "hint": f" · {hint}" if hint else "",
    }
    for least in _LEAST_FIRST:
        if width is None or cell_len("".join(parts.values())) <= width:
            break
        del parts[least]
    return "".join(parts.values())


def details(receipt: Receipt) -> list[tuple[str, str]]:
    """Every field that says something, with its name."""
    first = f", {seconds(receipt.ttft_s)} to the first word" if receipt.completion_tokens else ""
    rows = [
        ("answered by", where(receipt) + (f" ({receipt.variant})" if receipt.variant else "")),
        ("because", receipt.reason),
        ("waited", f"{seconds(receipt.queue_s)} in the queue{first}"),
        ("took", seconds(receipt.total_s) + speed(receipt)),
        (
            "tokens",
            f"{receipt.prompt_tokens:,} in ({receipt.cached_tokens:,} reused), "
            f"{receipt.completion_tokens:,} out",
        ),
        ("price", money(receipt.cost, receipt.currency)),
        ("cache", "off" if receipt.cache.verdict == "off" else cache(receipt.cache)),
    ]
    if len(receipt.attempts) > 1 or any(attempt.outcome != "ok" for attempt in receipt.attempts):
        rows.append(("attempts", ", ".join(_attempt(attempt) for attempt in receipt.attempts)))
    rows.append(("id", receipt.id))
    return rows


def where(receipt: Receipt) -> str:
    """The engine and its model, once if they have one name."""
    if receipt.model in ("", receipt.engine):
        return receipt.engine
    return f"{receipt.engine} · {receipt.model}"


def is_hit(receipt: Receipt) -> bool:
    """Whether the answer was kept from an earlier one."""
    return receipt.cache.verdict in ("exact", "semantic")


def speed(receipt: Receipt) -> str:
    return f", {receipt.tokens_per_s:.0f} tokens/s" if receipt.tokens_per_s else ""


def cache(info: CacheInfo) -> str:
    """What the cache said: a hit with its age and how near the question was."""
    match info.verdict:
        case "off":
            return "cache off"
        case "miss":
            return "not in the cache"
        case "exact":
            return f"from the cache, {units.age(info.age_s)} old"
        case "semantic":
            nearness = f", {info.similarity:.2f} alike" if info.similarity is not None else ""
            return f"from the cache, {units.age(info.age_s)} old{nearness}"


def money(amount: float, currency: str) -> str:
    """A price: free is free, and a fraction of a cent keeps digits that say something."""
    if amount == 0:
        return "free"
    symbol = _SYMBOLS.get(currency)
    return f"{symbol}{units.money(amount)}" if symbol else f"{units.money(amount)} {currency}"


def seconds(value: float) -> str:
    """A duration as people say it."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 60 else f"{value // 60:.0f} min {value % 60:.0f} s"


def parse(stored: Mapping[str, Any]) -> Receipt:
    """A receipt as the history has it; what another version wrote more or less of is left out or at its
    default."""
    values: dict[str, Any] = dict.fromkeys(
        ("id", "engine", "model", "variant", "reason"), ""
    ) | dict.fromkeys(
        (
            "prompt_tokens",
            "cached_tokens",
            "completion_tokens",
            "queue_s",
            "ttft_s",
            "total_s",
            "tokens_per_s",
        ),
        0,
    )
    values |= {"mode": "auto"} | _known(Receipt, stored)
    values["attempts"] = tuple(Attempt(**_known(Attempt, row)) for row in stored.get("attempts", ()))
    values["cache"] = CacheInfo(**_known(CacheInfo, stored.get("cache") or {}))
    return Receipt(**values)


def _known(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in stored.items() if name in names}


def _attempt(attempt: Attempt) -> str:
    return f"{attempt.engine}: {attempt.outcome} after {seconds(attempt.seconds)}"
