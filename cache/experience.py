"""What the semantic tier has seen: every lookup, what became of it, and the policy that follows.

Experience is kept by domain: one scope's traffic with one embedder. Another tenant's prompts neither widen
nor narrow what is served to this one. Whatever writes does so inside the caller's transaction.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from typing import NamedTuple

from .control import WINDOW, Observations, Policy, decide
from .vetoes import Suspicion

REVISE_EVERY = 50
"""Lookups between two revisions of a domain's policy."""


class Domain(NamedTuple):
    """One scope's traffic with one embedder; `known` is whether the shipped model was fitted to it."""

    scope: str
    fingerprint: str
    known: bool

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.scope}\n{self.fingerprint}".encode()).digest()


def policy_of(
    connection: sqlite3.Connection, domain: Domain, max_wrong_per_100: float, *, keep: bool = True
) -> Policy:
    """The policy for the next lookup, revised where enough has been seen or the bound is another. Without
    `keep` a revised one is not written.
    """
    row = connection.execute(
        "SELECT bound, lookup, policy FROM policies WHERE domain = ?", (domain.digest,)
    ).fetchone()
    (newest,) = connection.execute(
        "SELECT coalesce(max(number), 0) FROM lookups WHERE domain = ?", (domain.digest,)
    ).fetchone()
    if row is not None and row[0] == max_wrong_per_100 and newest < row[1] + REVISE_EVERY:
        return _loaded(row[2])
    return revise(connection, domain, max_wrong_per_100, keep=keep)


def revise(
    connection: sqlite3.Connection, domain: Domain, max_wrong_per_100: float, *, keep: bool = True
) -> Policy:
    """Decide anew from all that was seen, and keep the policy."""
    rows = connection.execute(
        """SELECT logit, added, replaced, served, audited, same, blamed, number FROM lookups
           WHERE domain = ? ORDER BY number DESC LIMIT ?""",
        (domain.digest, WINDOW),
    ).fetchall()
    seen = Observations.of([(-math.inf if row[0] is None else row[0], *row[1:7]) for row in reversed(rows)])
    policy = decide(seen, max_wrong_per_100, known=domain.known)
    if not keep:
        return policy
    newest = rows[0][7] if rows else 0
    connection.execute(
        "INSERT OR REPLACE INTO policies VALUES (?, ?, ?, ?, ?)",
        (domain.digest, domain.scope, max_wrong_per_100, newest, json.dumps(policy)),
    )
    connection.execute(
        """DELETE FROM lookups WHERE domain = ? AND number <=
           (SELECT number FROM lookups WHERE domain = ? ORDER BY number DESC LIMIT 1 OFFSET ?)""",
        (domain.digest, domain.digest, WINDOW),
    )
    return policy


def latest(connection: sqlite3.Connection) -> dict[str, Policy]:
    """The policy by which each scope was last answered."""
    rows = connection.execute("SELECT scope, policy FROM policies ORDER BY scope, lookup")
    return {scope: _loaded(policy) for scope, policy in rows}


def cold(max_wrong_per_100: float) -> Policy:
    """The policy of a scope that nothing was seen of yet."""
    return decide(Observations.of([]), max_wrong_per_100)


def _loaded(text: str) -> Policy:
    weights, threshold, wrong, off_because = json.loads(text)
    return Policy(tuple(weights), threshold, tuple(wrong), off_because)


def note(
    connection: sqlite3.Connection,
    domain: Domain,
    entry_id: str | None,
    logit: float,
    suspicion: Suspicion,
    *,
    served: bool = False,
    audited: bool = False,
) -> int:
    """Note a lookup; the number by which it is taught later."""
    (number,) = connection.execute(
        """INSERT INTO lookups (domain, entry_id, logit, added, replaced, served, audited)
           VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING number""",
        (
            domain.digest,
            entry_id,
            logit if math.isfinite(logit) else None,
            suspicion == "added",
            suspicion == "replaced",
            served,
            audited,
        ),
    ).fetchone()
    return int(number)


def teach(connection: sqlite3.Connection, lookup: int, entry_id: str, *, same: bool) -> None:
    """Say whether the candidate of a lookup had the same answer."""
    column = "confirmed" if same else "denied"
    connection.execute("UPDATE lookups SET same = ? WHERE number = ?", (same, lookup))
    connection.execute(f"UPDATE answers SET {column} = {column} + 1 WHERE id = ?", (entry_id,))


def blame(connection: sqlite3.Connection, entry_id: str) -> None:
    """Mark the last hit of an entry as wrong."""
    rows = connection.execute(
        """UPDATE lookups SET same = 0, blamed = 1 WHERE number =
           (SELECT max(number) FROM lookups WHERE entry_id = ? AND served = 1) RETURNING domain""",
        (entry_id,),
    ).fetchall()
    # The policy is decided anew at the next lookup.
    connection.executemany("DELETE FROM policies WHERE domain = ?", rows)
