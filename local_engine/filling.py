"""What goes into one step: a token for every answer that runs, and a bounded slice of the prompts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .llama import Batch
from .pacing import PrefillPacer, split_budget
from .sequence import Sequence

# Prompt positions scored in one step: each needs a row of logits over the whole vocabulary.
SCORED_PER_STEP = 32


class Work(NamedTuple):
    """What one sequence does in a step: compute `size` tokens, the last at batch position `last`."""

    sequence: Sequence
    size: int
    last: int
    scored: bool


def fill(
    batch: Batch, running: Iterable[Sequence], pacer: PrefillPacer, *, most_prefill: int, free_cells: int
) -> list[Work]:
    """Fill an empty batch. Prompts get what the pacer allows, at most `most_prefill` tokens, in the cells
    that the answers leave free.
    """
    works: list[Work] = []
    prefilling: list[Sequence] = []
    for sequence in running:
        if sequence.is_decoding and not sequence.scores_prompt:
            last = batch.add_one(sequence.tokens[-1], sequence.num_computed, sequence.seq_id)
            works.append(Work(sequence, 1, last, False))
        else:
            prefilling.append(sequence)
    if not prefilling:
        return works
    prefilling.sort(key=lambda sequence: sequence.arrival)
    num_decoding = len(works)
    budget = min(pacer.budget(num_decoding), batch.room, most_prefill, free_cells - num_decoding)
    shares = split_budget(max(0, budget), [sequence.remaining for sequence in prefilling])
    scorable = SCORED_PER_STEP
    for sequence, share in zip(prefilling, shares, strict=True):
        scored = sequence.scores_prompt
        count = min(share, scorable) if scored else share
        if count == 0:
            continue
        if scored:
            scorable -= count
        last = batch.add(
            sequence.next_tokens(count),
            sequence.num_computed,
            sequence.seq_id,
            last=count == sequence.remaining,
            every=scored,
        )
        works.append(Work(sequence, count, last, scored))
    return works
