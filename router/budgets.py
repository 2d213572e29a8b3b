"""Which budgets hold for a request, and in which period it falls.

A period is named by the local date (`2026-11-30`, `2026-11`), so that it ends at the user's midnight however
long the day is, and a clock that is set back finds what was spent in that period before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from edgecloud.settings import BudgetSettings

from .money import amount, nano
from .world import Budget, BudgetScope


@dataclass(frozen=True, slots=True)
class Limit:
    """One budget that a request falls under: which setting, whose money, in which period, and how much of it
    there is. `limit` is in nano, None for a sum that is only kept. `starts_at` and `ends_at` are Unix
    seconds, None for a budget without a period.
    """

    name: str
    kind: BudgetScope
    account: str
    period: str
    limit: int | None
    starts_at: float | None = None
    ends_at: float | None = None

    def view(self, spent: int, reserved: int) -> Budget | None:
        """The budget as the router looks at it; None without a limit."""
        if self.limit is None:
            return None
        return Budget(
            self.kind,
            amount(self.limit),
            amount(spent),
            amount(reserved),
            self.starts_at,
            self.ends_at,
            f"budget.{self.name}",
        )


def limits_of(
    settings: BudgetSettings, now: float, *, chat_id: str | None, tenant: str | None
) -> tuple[Limit, ...]:
    """The budgets of a request at `now` (Unix seconds), the widest first.

    Those without a limit are there too: what is spent is counted before anybody sets one.
    """
    return tuple(_limits(settings, time.localtime(now), chat_id, tenant))


Period = tuple[str, float | None, float | None]


def _limits(
    settings: BudgetSettings, now: time.struct_time, chat_id: str | None, tenant: str | None
) -> Iterator[Limit]:
    zone = *time.tzname, time.timezone
    day, month = _periods(now.tm_year, now.tm_mon, now.tm_mday, zone)

    def limit(name: str, kind: BudgetScope, account: str, period: Period) -> Limit:
        value: float | None = getattr(settings, name)
        return Limit(name, kind, account, period[0], None if value is None else nano(value), *period[1:])

    yield limit("per_day", "day", "all", day)
    yield limit("per_month", "month", "all", month)
    if tenant is not None:
        yield limit("per_key_day", "key", f"key:{tenant}", day)
        yield limit("per_key_month", "key", f"key:{tenant}", month)
    if chat_id is not None:
        yield limit("per_chat", "chat", f"chat:{chat_id}", ("", None, None))


@lru_cache(maxsize=4)
def _periods(year: int, month: int, day: int, zone: tuple[str, str, int]) -> tuple[Period, Period]:
    """The day and its month. Both hold all day long, so they are worked out once."""
    now = datetime(year, month, day)
    today, this_month = _midnight(now), _midnight(now.replace(day=1))
    tomorrow = _midnight(now + timedelta(days=1))
    next_month = _midnight((now.replace(day=1) + timedelta(days=32)).replace(day=1))
    return (
        (now.strftime("%Y-%m-%d"), today.timestamp(), tomorrow.timestamp()),
        (now.strftime("%Y-%m"), this_month.timestamp(), next_month.timestamp()),
    )


def _midnight(day: datetime) -> datetime:
    # Through naive local time: the offset of that midnight, not today's, also when the clocks change between.
    return datetime(day.year, day.month, day.day).astimezone()
