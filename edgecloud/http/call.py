"""What is known of one HTTP request, filled in on its way through the door and read at the end by log and
metrics.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from edgecloud.http.asgi import Scope, header
from edgecloud.log_lines import current_request_id
from edgecloud.types import new_id

MAX_ID = 128

_unsafe = re.compile(r"[^A-Za-z0-9._:/+=@-]")


@dataclass(slots=True)
class Call:
    """`request_id` is the client's own, cleaned, or one of ours; `tenant` a short hash of the key that
    opened the door.
    """

    request_id: str
    own_id: bool
    started: float = field(default_factory=time.perf_counter)
    route: str = "unmatched"
    status: int = 0
    body_read: bool = False
    bytes_out: int = 0
    tenant: str | None = None
    model: str = ""
    error: str | None = None
    # Seconds that the engines took, queue included, once they are done.
    engine_s: float | None = None
    notes: dict[str, str | int | float] = field(default_factory=dict)


def begin_call(scope: Scope) -> Call:
    """Take the request's id from `x-request-id`, or make one, and remember the call in the scope."""
    given = _unsafe.sub("", header(scope, b"x-request-id") or "")[:MAX_ID]
    call = Call(request_id=given or new_id("req"), own_id=not given)
    scope["edgecloud.call"] = call
    current_request_id.set(call.request_id)
    return call


def call_of(scope: Scope) -> Call:
    """The call of a scope; a fresh one where nothing began it (a bare app in a test)."""
    call: Call | None = scope.get("edgecloud.call")
    return call if call is not None else begin_call(scope)
