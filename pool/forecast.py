"""What is expected of a sequence: tokens still to come, the seconds they take, the blocks they need."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .admission import Growth
from .blocks import BlockPool
from .costs import StepCosts
from .estimate import LengthEstimate
from .sequence import Sequence


class Forecast:
    """Of one engine: its pool, what its steps cost, and how long its answers were lately."""

    def __init__(self, pool: BlockPool, costs: StepCosts, estimate: LengthEstimate) -> None:
        self._pool = pool
        self._costs = costs
        self._estimate = estimate

    def num_left(self, sequence: Sequence) -> int:
        """Output tokens still expected; at least one, unless none may come."""
        return self._left(sequence, self._estimate.predict)

    def seconds_left(self, sequence: Sequence) -> float:
        return self._costs.service_seconds(sequence, self.num_left(sequence))

    def num_blocks(self, sequence: Sequence) -> int:
        """Blocks it will hold at its end."""
        return self._pool.blocks_for(sequence.num_tokens + self.num_left(sequence))

    def num_reserved(self, running: Iterable[Sequence]) -> int:
        """Blocks that sequences have yet to take for tokens that they have, drafts to verify included."""
        size = self._pool.block_size
        total = 0
        for sequence in running:
            num_slots = len(sequence.tokens) + len(sequence.drafts)
            num_lacking = -(-num_slots // size) - len(sequence.table.blocks)
            if num_lacking > 0:
                total += num_lacking
        return total

    def growths(self, sequence: Sequence) -> list[Growth]:
        """How it, and the choices that will fork from it, take blocks. A hit's blocks are not its to free.

        The length is the mean: the lengths that single answers won't exceed add up to what all of them
        together never reach.
        """
        num_left = self._left(sequence, self._estimate.mean)
        num_held = len(sequence.table.blocks)
        num_freed = max(num_held - self._pool.blocks_for(sequence.num_hit), 0)
        forks = [Growth(num_left, 1, 0, 0)] * (sequence.width - 1)
        # Drafts lie behind the last token until they are judged, at the end of the answer too.
        num_tokens = sequence.num_tokens + len(sequence.drafts)
        return [Growth(num_left, num_tokens, num_held, num_freed), *forks]

    def _left(self, sequence: Sequence, total: Callable[[int, int], int]) -> int:
        num_output = sequence.num_output
        expected = total(num_output, sequence.request.job.max_tokens)
        return max(expected - num_output, min(1, sequence.num_left))
