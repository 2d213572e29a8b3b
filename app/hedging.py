"""How often a request may be asked a second time elsewhere, so that late answers don't double the load."""

from __future__ import annotations

MOST_SAVED = 5.0
"""Hedges that a quiet time can save up."""


class HedgeBudget:
    """Lets at most `share` of all requests be hedged: each request earns that much of one."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = 0.0

    def earn(self) -> None:
        """One more request was taken."""
        self._saved = min(MOST_SAVED, self._saved + self._share)

    @property
    def has_room(self) -> bool:
        return self._saved >= 1.0

    def take(self) -> bool:
        """Spend one hedge, if there is one."""
        if not self.has_room:
            return False
        self._saved -= 1.0
        return True
