"""Reading the ledger: one request's story, the last requests, and sums by engine and day."""

from __future__ import annotations

import json
import sqlite3
from itertools import groupby
from statistics import median
from typing import Any

from edgecloud.types import Usage

from ..money import amount
from .entries import AnswerEntry, EngineSums

HITS = ("exact", "semantic")

INTERRUPTED = "interrupted"
"""The outcome of a request that whoever asked broke off."""

MIN_PREFIX = 4
"""Digits that the beginning of a request's id must have to stand for it."""


def matching(connection: sqlite3.Connection, name: str, tenant: str | None) -> list[str]:
    """Ids of requests that `name` may mean: the last one for '', else those that it is or begins."""
    of_tenant = "(? IS NULL OR tenant = ?)"
    if not name:
        rows = connection.execute(
            f"SELECT id FROM requests WHERE {of_tenant} ORDER BY created DESC LIMIT 1", (tenant, tenant)
        )
    else:
        stem = "req-" + name.removeprefix("req-")
        if len(stem) < len("req-") + MIN_PREFIX:
            stem = name
        rows = connection.execute(
            f"SELECT id FROM requests WHERE {of_tenant} AND (id = ? OR id BETWEEN ? AND ?) LIMIT 20",
            (tenant, tenant, name, stem, stem + "\U0010ffff"),
        )
    return [request_id for (request_id,) in rows]


def receipt(connection: sqlite3.Connection, request_id: str) -> dict[str, Any]:
    """The line of a request that is there, its receipt under `receipt` and its attempts under `attempts`."""
    created, door, tenant, chat_id, outcome, nano, text = connection.execute(
        "SELECT created, door, tenant, chat_id, outcome, nano, receipt FROM requests WHERE id = ?",
        (request_id,),
    ).fetchone()
    attempts = connection.execute(
        """SELECT engine, replica, started, seconds, outcome, prompt_tokens, cached_tokens,
                  completion_tokens, nano, at_least FROM attempts WHERE request_id = ? ORDER BY number""",
        (request_id,),
    ).fetchall()
    return {
        "id": request_id,
        "created": created,
        "door": door,
        "tenant": tenant,
        "chat_id": chat_id,
        "outcome": outcome,
        "cost": amount(nano),
        "receipt": json.loads(text),
        "attempts": [
            {
                "engine": engine,
                "replica": replica,
                "started": started,
                "seconds": seconds,
                "outcome": how,
                "prompt_tokens": prompt,
                "cached_tokens": cached,
                "completion_tokens": completion,
                "cost": amount(cost),
                "at_least": bool(at_least),
            }
            for engine, replica, started, seconds, how, prompt, cached, completion, cost, at_least in attempts
        ],
    }


def decision(connection: sqlite3.Connection, request_id: str) -> dict[str, Any] | None:
    row = connection.execute("SELECT json FROM decisions WHERE request_id = ?", (request_id,)).fetchone()
    found: dict[str, Any] | None = json.loads(row[0]) if row else None
    return found


def recent(connection: sqlite3.Connection, limit: int) -> list[dict[str, Any]]:
    """Requests with what a list of them shows."""
    rows = connection.execute(
        """SELECT id, created, door, engine, model, mode, outcome, cache, prompt_tokens, completion_tokens,
                  total_s, nano FROM requests ORDER BY created DESC LIMIT ?""",
        (limit,),
    )
    names = [
        "id",
        "created",
        "door",
        "engine",
        "model",
        "mode",
        "outcome",
        "cache",
        "prompt_tokens",
        "completion_tokens",
        "total_s",
        "cost",
    ]
    return [dict(zip(names, (*row[:-1], amount(row[-1])), strict=True)) for row in rows]


def requests_since(connection: sqlite3.Connection, since: float) -> list[tuple[float, str, dict[str, Any]]]:
    """Requests from a moment on, oldest first: when, how they ended, and the receipt."""
    rows = connection.execute(
        "SELECT created, outcome, receipt FROM requests WHERE created >= ? ORDER BY created", (since,)
    )
    return [(created, outcome, json.loads(text)) for created, outcome, text in rows]


def last_answers(connection: sqlite3.Connection, engine: str, limit: int) -> list[AnswerEntry]:
    """An engine's own last whole answers, the latest first."""
    rows = connection.execute(
        """SELECT model, prompt_tokens, completion_tokens, cached_tokens, ttft_s, tokens_per_s FROM requests
           WHERE engine = ? AND outcome = 'ok' AND cache NOT IN (?, ?) AND completion_tokens > 0
           ORDER BY created DESC LIMIT ?""",
        (engine, *HITS, limit),
    )
    return [AnswerEntry(model, Usage(*tokens), ttft_s, rate) for model, *tokens, ttft_s, rate in rows]


def sums(connection: sqlite3.Connection, since: float, *, by_day: bool) -> tuple[EngineSums, ...]:
    """One line for each engine since then, or for each day and engine."""
    column = "day" if by_day else "''"
    rows = connection.execute(
        f"""SELECT {column}, engine, outcome, cache, prompt_tokens, cached_tokens, completion_tokens, nano,
                   ttft_s, total_s, tokens_per_s
            FROM requests WHERE created >= ? ORDER BY 1, 2""",
        (since,),
    )
    groups = groupby(rows, key=lambda row: (row[0], row[1]))
    return tuple(_summed(day, engine, list(group)) for (day, engine), group in groups)


def _summed(day: str, engine: str, rows: list[tuple[Any, ...]]) -> EngineSums:
    asked = [row for row in rows if row[3] not in HITS]
    answered = [row for row in asked if row[2] == "ok" and row[6]]
    return EngineSums(
        day,
        engine,
        requests=len(rows),
        failed=sum(row[2] not in ("ok", INTERRUPTED) for row in rows),
        interrupted=sum(row[2] == INTERRUPTED for row in rows),
        cache_hits=sum(row[3] in HITS for row in rows),
        prompt_tokens=sum(row[4] for row in asked),
        cached_tokens=sum(row[5] for row in asked),
        completion_tokens=sum(row[6] for row in asked),
        cost=amount(sum(row[7] for row in rows)),
        ttft_s=median([row[8] for row in answered] or [0.0]),
        total_s=median([row[9] for row in answered] or [0.0]),
        tokens_per_s=median([row[10] for row in answered if row[10]] or [0.0]),
    )
