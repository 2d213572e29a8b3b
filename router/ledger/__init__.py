"""What was asked of whom, what it took and what it cost, in `edgecloud.db`; no text of anybody.

    reserve ──> (attempts) ──> settle: the reservation becomes what was really spent
       │
       └─ a process that dies leaves its reservation; only then is it taken back, as spent

Sums are kept by account and period (`budgets.Limit`), so a check costs the same after a million requests.
"""

from .entries import AnswerEntry, AttemptEntry, EngineSums, Precedent, RequestEntry
from .precedents import KeptPrecedents
from .store import Ledger
from .tables import MIGRATIONS

__all__ = [
    "MIGRATIONS",
    "AnswerEntry",
    "AttemptEntry",
    "EngineSums",
    "KeptPrecedents",
    "Ledger",
    "Precedent",
    "RequestEntry",
]
