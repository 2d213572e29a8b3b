"""Reservations: money is set aside before anything is sent, and becomes what was really spent.

Each function is part of a transaction that its caller began, which is what makes check and reservation one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from edgecloud.errors import BudgetExceeded
from edgecloud.owner import Owner
from edgecloud.units import money

from ..money import amount
from .entries import Orphan

if TYPE_CHECKING:
    from ..budgets import Limit

STALE_S = 60.0
"""A reservation without a heartbeat for this long is given up where its process id may be used again."""


def reserve(
    connection: sqlite3.Connection,
    request_id: str,
    limits: Sequence[Limit],
    nano: int,
    owner: Owner,
    now: float,
    currency: str,
    engine: str,
) -> None:
    """Set `nano` more aside for the request, which `engine` gets, under every limit. Raises `BudgetExceeded`
    if one has no room.
    """
    for limit in limits:
        if limit.limit is None:
            continue
        spent, reserved = sums(connection, limit)
        if spent + reserved + nano > limit.limit:
            raise _exceeded(limit, limit.limit - spent - reserved, nano, currency)
    for limit in limits:
        connection.execute(
            """INSERT INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
               SET nano = nano + excluded.nano, beat = excluded.beat, engine = excluded.engine""",
            (limit.account, limit.period, request_id, nano, *owner, now, engine),
        )


def settle(connection: sqlite3.Connection, request_id: str, limits: Iterable[Limit], nano: int) -> None:
    """Give back what was reserved for the request and count what it spent."""
    connection.execute("DELETE FROM reservations WHERE request_id = ?", (request_id,))
    for limit in limits:
        spend(connection, limit.account, limit.period, nano)


def spend(connection: sqlite3.Connection, account: str, period: str, nano: int) -> None:
    """Count `nano`, which may be negative for a correction, as spent."""
    if nano:
        connection.execute(
            "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET nano = nano + excluded.nano",
            (account, period, nano),
        )


def sums(connection: sqlite3.Connection, limit: Limit) -> tuple[int, int]:
    """What is spent and what is reserved of a budget, in nano."""
    key = (limit.account, limit.period)
    spent = connection.execute("SELECT nano FROM spent WHERE account = ? AND period = ?", key).fetchone()
    (reserved,) = connection.execute(
        "SELECT coalesce(sum(nano), 0) FROM reservations WHERE account = ? AND period = ?", key
    ).fetchone()
    return (spent[0] if spent else 0), reserved


def reclaim(connection: sqlite3.Connection, now: float) -> list[Orphan]:
    """Take back what dead processes had reserved; returns of which requests.

    Nobody knows what their upstreams had done by then, so it counts as spent: a budget may be too careful,
    never too generous.
    """
    rows = connection.execute(
        "SELECT DISTINCT request_id, owner_pid, owner_started, beat FROM reservations"
    ).fetchall()
    dead = {request_id for request_id, *owner, beat in rows if _is_dead(Owner(*owner), now - beat)}
    return [_take_back(connection, request_id) for request_id in sorted(dead)]


def _take_back(connection: sqlite3.Connection, request_id: str) -> Orphan:
    held = connection.execute(
        "SELECT account, period, nano, beat, engine FROM reservations WHERE request_id = ?", (request_id,)
    ).fetchall()
    for account, period, nano, _, _ in held:
        spend(connection, account, period, nano)
    connection.execute("DELETE FROM reservations WHERE request_id = ?", (request_id,))
    _, _, nano, beat, engine = held[0]
    whose = {kind: name for kind, _, name in (account.partition(":") for account, *_ in held)}
    return Orphan(request_id, engine, nano, beat, whose.get("key"), whose.get("chat"))


def _is_dead(owner: Owner, silence_s: float) -> bool:
    state = owner.state()
    # A clock that was set back makes the silence negative; that is no sign of death.
    return state == "dead" or (state == "unsure" and silence_s > STALE_S)


def _exceeded(limit: Limit, left: int, nano: int, currency: str) -> BudgetExceeded:
    until = ""
    if limit.ends_at is not None:
        until = f" until {datetime.fromtimestamp(limit.ends_at):%Y-%m-%d %H:%M}"
    return BudgetExceeded(
        f"This may cost up to {money(amount(nano))} {currency}, and budget.{limit.name} has "
        f"{money(amount(max(0, left)))} left{until}: allow fewer tokens, ask a model on this machine, "
        "or raise the budget."
    )
