"""Which budgets hold for a request, and in which period it falls.

A period is named by the local date (`2026-11-30`, `2026-11`), so that it ends at the user's midnight however
long the day is, and a clock that is set back finds what was spent in that period before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from edgecloud.settings import BudgetSettings

from .money import nano


@dataclass(frozen=True, slots=True)
class Limit:
    """One budget that a request falls under: what it is called, whose, in which period, and how much of it
    there is. `limit` is in nano, None for a sum that is kept without a limit.
    """

    name: str
    scope: str
    period: str
    limit: int | None
    resets: datetime | None


def limits_of(
    settings: BudgetSettings, now: float, *, chat_id: str | None, tenant: str | None
) -> tuple[Limit, ...]:
    """The budgets of a request at `now` (seconds since the epoch), the widest first.

    Those without a limit are there too: what is spent is counted before anybody sets one.
    """
    return tuple(_limits(settings, datetime.fromtimestamp(now).astimezone(), chat_id, tenant))


def _limits(
    settings: BudgetSettings, now: datetime, chat_id: str | None, tenant: str | None
) -> Iterator[Limit]:
    day, month = now.strftime("%Y-%m-%d"), now.strftime("%Y-%m")
    tomorrow = _midnight(now + timedelta(days=1))
    next_month = _midnight((now.replace(day=1) + timedelta(days=32)).replace(day=1))
    yield Limit("per_day", "all", day, _limit(settings.per_day), tomorrow)
    yield Limit("per_month", "all", month, _limit(settings.per_month), next_month)
    if tenant is not None:
        scope = f"key:{tenant}"
        yield Limit("per_key_day", scope, day, _limit(settings.per_key_day), tomorrow)
        yield Limit("per_key_month", scope, month, _limit(settings.per_key_month), next_month)
    if chat_id is not None:
        yield Limit("per_chat", f"chat:{chat_id}", "", _limit(settings.per_chat), None)


def _limit(amount: float | None) -> int | None:
    return None if amount is None else nano(amount)


def _midnight(day: datetime) -> datetime:
    # Through naive local time: the offset of that midnight, not today's, also when the clocks change between.
    return datetime(day.year, day.month, day.day).astimezone()
