"""One request's money: set aside before each attempt, at most once for all of them together."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from edgecloud.errors import BudgetExceeded, StorageError
from edgecloud.settings import BudgetSettings
from edgecloud.types import ChatRequest, Usage

from ..router.money import most_usage
from .books import Books
from .run import Run, Tried
from .upstreams import Upstream


class Ticket(NamedTuple):
    """An attempt that is paid for: the request as it may be sent, and the most that was set aside for; None
    where nothing had to be.
    """

    request: ChatRequest
    most: Usage | None = None
    nano: int = 0


class Till:
    """The reservation of one request. It grows when an attempt needs more than is left of it, and is never
    more than what was spent so far and what the attempts under way may still spend.
    """

    def __init__(self, run: Run, books: Books | None, budget: BudgetSettings) -> None:
        self._run = run
        self._books = books
        self._budget = budget
        self._reserved = 0
        self._under_way = 0

    async def pay_for(self, upstream: Upstream, request: ChatRequest) -> Ticket:
        """Set aside what an attempt may cost. Raises `BudgetExceeded`; also where the ledger can't be read,
        for then nobody knows what is left.
        """
        if upstream.billed.is_free or not self._budget.is_limited:
            return Ticket(request)
        if self._books is None:
            raise BudgetExceeded("There is a budget and no ledger to keep it: ask a model on this machine.")
        # Without a limit on the answer no reservation could cover it.
        request = dataclasses.replace(request, max_tokens=request.max_tokens or self._budget.answer_tokens)
        most = most_usage(request, request.max_tokens or 0)
        nano = upstream.billed.most(most)
        missing = self._run.nano + self._under_way + nano - self._reserved
        if missing > 0:
            try:
                await self._books.reserve(self._run.request.id, self._run.limits, missing, upstream.name)
            except StorageError as error:
                raise BudgetExceeded(
                    f"There is a budget, and what is left of it can't be read: {error.message} "
                    "Until then ask a model on this machine."
                ) from error
            self._reserved += missing
        self._under_way += nano
        return Ticket(request, most, nano)

    def book(self, ticket: Ticket, tried: Tried | None) -> None:
        """The attempt is over, and this is what it took; None if it never began."""
        self._under_way -= ticket.nano
        if tried is not None:
            self._run.tried.append(tried)
