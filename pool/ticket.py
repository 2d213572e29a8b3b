"""Between the asker, on an event loop, and the step loop, in its thread: what is asked, what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from edgecloud.errors import EdgeCloudError
from edgecloud.inbox import Inbox
from edgecloud.vocabulary import TokenScore

from .runner import Drawing
from .sequence import Ended, Job, StopReason


@dataclass(frozen=True, slots=True)
class Ask:
    """A job, how its tokens are drawn, and the texts that end a choice. `spell` gives the bytes that a token
    adds to the text. One that is not `counted` is nobody's request and in no request's metrics.
    """

    job: Job
    drawing: Drawing
    stops: tuple[str, ...] = ()
    spell: Callable[[int], bytes] = lambda token: b""
    counted: bool = True


class Accepted(NamedTuple):
    """The request has its place in the queue."""


class Tokens(NamedTuple):
    """New tokens of one choice, with one score each or none; `stopped` says why they are the last."""

    choice: int
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...]
    stopped: StopReason | None


class Scores(NamedTuple):
    """Those of the next prompt tokens, in order; the first token of a prompt has none."""

    scores: tuple[TokenScore, ...]


class Closed(NamedTuple):
    """The last message: how the request ended, or why it never began."""

    end: Ended | None
    error: EdgeCloudError | None = None


Message = Accepted | Tokens | Scores | Closed


class Ticket(Inbox[Message]):
    """The asker's end of a request. Made on the event loop that will receive; `cancel` works at any time."""

    def __init__(self, ask: Ask, on_cancel: Callable[[Ticket], None]) -> None:
        super().__init__()
        self.ask = ask
        self.submitted_at = time.monotonic()
        self.cancelled_at: float | None = None
        # Written by the step loop: how the choice that ended last did.
        self.stopped: StopReason | None = None
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        """End the request at the next step boundary, in whatever state it is; nothing where it has ended."""
        if self.cancelled_at is None:
            self.cancelled_at = time.monotonic()
            self._on_cancel(self)
