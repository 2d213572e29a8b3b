"""What a scheduler has done since its start, in numbers that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Events, or tokens where the name says so."""

    steps: int = 0
    swapped: int = 0
    recomputed: int = 0
    kept: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    wasted_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
