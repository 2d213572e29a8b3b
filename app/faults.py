"""Whose fault an error is: that decides who is asked next, and who is left alone for a while."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from edgecloud.errors import (
    BadRequest,
    BudgetExceeded,
    ContextLengthExceeded,
    DeadlineExceeded,
    EdgeCloudError,
    NoPermittedRoute,
    NotSupported,
    Overloaded,
    PayloadTooLarge,
    Unavailable,
    UpstreamError,
)

Kind = Literal["request", "capability", "credential", "deployment", "deadline"]

CREDENTIAL_PAUSE_S = 60.0
"""A refused key, an empty account or a wrong model name is not mended by asking again in a second."""

# An account that is blocked is reported with whatever status the provider likes.
_ACCOUNT = re.compile(
    r"insufficient[ _](?:quota|balance|funds|credits?)|billing|out of credits?|payment required"
    r"|account (?:is )?(?:not active|deactivated|suspended)|organi[sz]ation .{0,40}(?:disabled|restricted)",
    re.IGNORECASE,
)
# Some servers report what is wrong with a body as a failure of theirs.
_INVALID = re.compile(
    r"invalid[ _](?:parameter|request|argument|value|type)|validation error|unprocessable|must be one of",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`request`: wrong in itself, nobody else is asked. `capability`: this engine can't, another may.
    `credential`: our key or account there is refused, by all its replicas. `deployment`: this one address
    fails. `deadline`: time is up for everybody. `pause_s` is how long to leave it alone, where it is known.
    """

    kind: Kind
    pause_s: float | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether asking another engine can help."""
        return self.kind not in ("request", "deadline")

    @property
    def cools(self) -> bool:
        """Whether the deployment is to blame."""
        return self.kind in ("credential", "deployment")


def fault_of(error: EdgeCloudError) -> Fault:
    """The fault behind an error that an engine raised."""
    if _ACCOUNT.search(error.message):
        return Fault("credential", CREDENTIAL_PAUSE_S)
    match error:
        case ContextLengthExceeded() | NotSupported() | PayloadTooLarge():
            return Fault("capability")
        case BadRequest(code="context_length_exceeded"):
            return Fault("capability")
        case BadRequest():
            return Fault("request")
        case DeadlineExceeded():
            return Fault("deadline")
        case NoPermittedRoute() | BudgetExceeded():
            # Refused by us before anything was sent: it says nothing of the engine.
            return Fault("capability")
        case Overloaded() | Unavailable():
            return Fault("deployment", error.retry_after)
        case UpstreamError(upstream_status=status) if status in (401, 402, 403, 404):
            return Fault("credential", CREDENTIAL_PAUSE_S)
        case UpstreamError(upstream_status=int()) if _INVALID.search(error.message):
            return Fault("request")
        case UpstreamError():
            return Fault("deployment", error.retry_after)
        case _:
            return Fault("deployment")
