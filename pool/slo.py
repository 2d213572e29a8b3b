"""What a user calls good: a first token soon, and the others without delay."""

from __future__ import annotations

from dataclasses import dataclass

from .sequence import Ended


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds to the first token, and seconds per token after it."""

    ttft_s: float = 1.0
    tpot_s: float = 0.05

    def is_met(self, end: Ended) -> bool:
        """Whether a request was answered to its end and within both."""
        return (
            end.reason == "done"
            and end.first_token_at is not None
            and end.first_token_at - end.arrival <= self.ttft_s
            and seconds_per_token(end) <= self.tpot_s
        )


def seconds_per_token(end: Ended) -> float:
    """Mean time per output token after the first (TPOT); 0 for an answer of one token or none."""
    first = end.ended_at if end.first_token_at is None else end.first_token_at
    return (end.ended_at - first) / max(end.num_output - 1, 1)
