"""What the user thought of answers: verdicts with the question's vector, never its text, in `edgecloud.db`.

A thumb is a verdict; so is, with less weight, asking again, editing, or preferring another answer. Each goes
with its chat, and trained versions keep sums over all verdicts, none of them.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from edgecloud.database import Database
from edgecloud.errors import BadRequest, NotFound
from edgecloud.storage import BUSY_S, Migration

from .learned import UNTRAINED, Corrections
from .learning.evidence import NOTHING, Evidence
from .learning.features import NAMES, Floats
from .ledger.deleted import is_deleted, note_deleted, remember_deleted_chats
from .world import EngineKind

Verdict = Literal["up", "down", "picked", "passed", "regenerated", "edited", "asked_again", "labelled"]

VERDICTS: Mapping[str, tuple[float, float]] = {
    # The score that the answer gets, and how much that counts.
    "up": (1.0, 1.0),
    "down": (0.0, 1.0),
    "picked": (1.0, 0.7),
    "passed": (0.0, 0.7),
    "regenerated": (0.0, 0.4),
    "edited": (0.0, 0.3),
    "asked_again": (0.0, 0.3),
    "labelled": (1.0, 1.0),
}

MOST = 20_000
"""Verdicts that are kept; the oldest go first."""
KEPT_VERSIONS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """An answer that a verdict can be on: who gave it, and the question as numbers."""

    request_id: str
    engine: str
    model: str
    kind: EngineKind
    parameters: float | None
    vector: Floats
    fingerprint: str
    features: Floats
    chat_id: str | None = None
    tenant: str | None = None


def create_outcomes(connection: sqlite3.Connection) -> None:
    for statement in (
        """CREATE TABLE outcomes (
            number INTEGER PRIMARY KEY, request_id TEXT NOT NULL, engine TEXT NOT NULL, model TEXT NOT NULL,
            created REAL NOT NULL, chat_id TEXT, tenant TEXT, verdict TEXT NOT NULL, score REAL NOT NULL,
            weight REAL NOT NULL, kind TEXT NOT NULL, parameters REAL, fingerprint TEXT NOT NULL,
            vector BLOB NOT NULL, features BLOB NOT NULL, UNIQUE (request_id, engine))""",
        "CREATE INDEX outcomes_by_chat ON outcomes (chat_id) WHERE chat_id IS NOT NULL",
        "CREATE INDEX outcomes_by_created ON outcomes (created)",
        """CREATE TABLE router_versions (
            number INTEGER PRIMARY KEY AUTOINCREMENT, created REAL NOT NULL, fingerprint TEXT NOT NULL,
            weights BLOB NOT NULL, report TEXT NOT NULL, installed INTEGER NOT NULL)""",
    ):
        connection.execute(statement)


MIGRATIONS: Sequence[Migration] = (create_outcomes, remember_deleted_chats)


def check_verdict(verdict: str) -> None:
    """Raises `BadRequest` for a verdict that there is not."""
    if verdict not in VERDICTS:
        raise BadRequest(
            f"There is no verdict {verdict[:40]!r}: say one of {', '.join(get_args(Verdict))}.",
            param="verdict",
        )


class Outcomes(Database):
    """Methods may be called from any thread; all raise `StorageError` when the file can't be used."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        busy_s: float = BUSY_S,
        for_reading: bool = False,
    ) -> None:
        super().__init__(path, MIGRATIONS, busy_s=busy_s, for_reading=for_reading)
        self._clock = clock

    # ----------------------------------------------------------------------------------------------- verdicts

    def record(self, answered: Answered, verdict: str, *, score: float | None = None) -> None:
        """Keep what the user thought of an answer. A stronger verdict on the same answer replaces a weaker
        one, and a later thumb the earlier; `score` (0..1) is for `labelled`. None is kept of a chat that was
        deleted. Raises `BadRequest` for a verdict that there is not.
        """
        check_verdict(verdict)
        usual, weight = VERDICTS[verdict]
        row = (
            answered.request_id,
            answered.engine,
            answered.model,
            self._clock(),
            answered.chat_id,
            answered.tenant,
            verdict,
            usual if score is None else min(max(score, 0.0), 1.0),
            weight,
            answered.kind,
            answered.parameters,
            answered.fingerprint,
            answered.vector.astype(np.float16).tobytes(),
            answered.features.astype(np.float32).tobytes(),
        )
        with self._writing() as connection:
            if is_deleted(connection, answered.chat_id):
                return
            connection.execute(
                """INSERT INTO outcomes (request_id, engine, model, created, chat_id, tenant, verdict, score,
                       weight, kind, parameters, fingerprint, vector, features)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                   ON CONFLICT (request_id, engine) DO UPDATE SET
                       verdict = excluded.verdict, score = excluded.score, weight = excluded.weight,
                       created = excluded.created
                   WHERE excluded.weight >= outcomes.weight""",
                row,
            )
            connection.execute(
                """DELETE FROM outcomes WHERE number IN
                   (SELECT number FROM outcomes ORDER BY created DESC, number DESC LIMIT -1 OFFSET ?)""",
                (MOST,),
            )

    def withdraw(self, request_id: str) -> bool:
        """Forget the verdict on an answer; whether there was one."""
        with self._writing() as connection:
            return connection.execute("DELETE FROM outcomes WHERE request_id = ?", (request_id,)).rowcount > 0

    def delete_chats(self, chat_ids: Sequence[str]) -> int:
        """Forget every verdict of these chats, also those to come; returns how many there were."""
        with self._writing() as connection:
            note_deleted(connection, chat_ids, self._clock())
            return sum(
                connection.execute("DELETE FROM outcomes WHERE chat_id = ?", (chat_id,)).rowcount
                for chat_id in chat_ids
            )

    def prune(self, days: float) -> int:
        """Forget verdicts older than this; returns how many."""
        with self._writing() as connection:
            return connection.execute(
                "DELETE FROM outcomes WHERE created < ?", (self._clock() - 86_400 * days,)
            ).rowcount

    def counts(self) -> dict[str, int]:
        """How many verdicts there are of each kind."""
        with self._reading() as connection:
            return dict(connection.execute("SELECT verdict, count(*) FROM outcomes GROUP BY 1 ORDER BY 1"))

    def stamp(self) -> tuple[Any, ...]:
        """Changes whenever verdicts or the installed version do, whoever changed them."""
        with self._reading() as connection:
            verdicts = connection.execute(
                "SELECT count(*), max(number), max(created) FROM outcomes"
            ).fetchone()
            return (*verdicts, self._installed(connection))

    def evidence(self, fingerprint: str) -> Evidence:
        """All verdicts with vectors of this embedder, the oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                """SELECT request_id, coalesce(chat_id, request_id), coalesce(tenant, ''), engine, model,
                          kind, parameters, vector, features, score, weight
                   FROM outcomes WHERE fingerprint = ? ORDER BY created, number""",
                (fingerprint,),
            ).fetchall()
        if not rows:
            return NOTHING
        ids, groups, tenants, engines, models, kinds, sizes, vectors, features, scores, weights = zip(
            *rows, strict=True
        )
        return Evidence(
            ids=np.array(ids, dtype=np.str_),
            groups=np.array(groups, dtype=np.str_),
            tenants=np.array(tenants, dtype=np.str_),
            engines=np.array(engines, dtype=np.str_),
            models=np.array(models, dtype=np.str_),
            kinds=np.array(kinds, dtype=np.str_),
            parameters=np.array([float("nan") if size is None else size for size in sizes]),
            vectors=np.stack([np.frombuffer(vector, np.float16).astype(np.float32) for vector in vectors]),
            features=np.stack([_features(row) for row in features]),
            scores=np.array(scores),
            weights=np.array(weights),
        )

    # ----------------------------------------------------------------------------------------------- versions

    def install(self, weights: Mapping[tuple[str, str], Any], fingerprint: str, report: Any) -> int:
        """Keep a trained version and use it from now on; returns its number. The last few are kept."""
        packed = io.BytesIO()
        np.savez(
            packed, keys=np.array([json.dumps(key) for key in weights]), weights=np.stack([*weights.values()])
        )
        with self._writing() as connection:
            connection.execute("UPDATE router_versions SET installed = 0")
            number = connection.execute(
                """INSERT INTO router_versions (created, fingerprint, weights, report, installed)
                   VALUES (?, ?, ?, ?, 1)""",
                (self._clock(), fingerprint, packed.getvalue(), json.dumps(report)),
            ).lastrowid
            connection.execute(
                "DELETE FROM router_versions WHERE number NOT IN (SELECT number FROM router_versions "
                "ORDER BY number DESC LIMIT ?)",
                (KEPT_VERSIONS,),
            )
        assert number is not None
        return number

    def undo(self) -> int:
        """Use the version before the installed one, 0 for what came with the product. Raises `NotFound`."""
        with self._writing() as connection:
            installed = self._installed(connection)
            if not installed:
                raise NotFound("Nothing was trained, so there is nothing to undo.")
            before = connection.execute(
                "SELECT max(number) FROM router_versions WHERE number < ?", (installed,)
            ).fetchone()[0]
            connection.execute("UPDATE router_versions SET installed = (number = ?)", (before or 0,))
            return int(before or 0)

    def corrections(self, fingerprint: str) -> Corrections:
        """The installed version; none where nothing was trained, or with another embedder."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT number, weights FROM router_versions WHERE installed AND fingerprint = ?",
                (fingerprint,),
            ).fetchone()
        if row is None:
            return UNTRAINED
        with np.load(io.BytesIO(row[1]), allow_pickle=False) as archive:
            keys = [json.loads(str(key)) for key in archive["keys"]]
            return Corrections(
                row[0], {(key[0], key[1]): each for key, each in zip(keys, archive["weights"], strict=True)}
            )

    def versions(self) -> list[dict[str, Any]]:
        """Every version that is kept, the latest first: number, created, installed, report."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT number, created, installed, report FROM router_versions ORDER BY number DESC"
            ).fetchall()
        return [
            {"number": number, "created": created, "installed": bool(installed), "report": json.loads(report)}
            for number, created, installed, report in rows
        ]

    # ------------------------------------------------------------------------------------------------- inside

    def _installed(self, connection: sqlite3.Connection) -> int:
        row = connection.execute("SELECT number FROM router_versions WHERE installed").fetchone()
        return int(row[0]) if row else 0


def _features(packed: bytes) -> Floats:
    """A verdict's features; NaN for those that were not measured when it was kept."""
    known = np.frombuffer(packed, np.float32)
    row = np.full(len(NAMES), np.nan, np.float32)
    row[: len(known)] = known[: len(NAMES)]
    return row
