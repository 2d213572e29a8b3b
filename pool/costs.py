"""How long things take, in seconds: pre-emption is weighed with it, simulated time is told by it."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import StepPlan
from .sequence import Sequence


@dataclass(slots=True)
class StepCosts:
    """A step costs a constant, plus each token computed, plus each context token read, plus each block moved.

    The defaults are of the order of an 8B model in bf16 on one H100: weights read once a step, compute-bound
    prefill, KV read at memory bandwidth, 2 MiB blocks over PCIe. `CostMeter` puts in what this machine takes.
    """

    step_s: float = 6e-3
    token_s: float = 2.5e-5
    context_token_s: float = 4e-8
    block_swap_s: float = 4e-5

    def step_seconds(self, plan: StepPlan) -> float:
        """What a step takes; nothing where it has nothing to compute or to move."""
        if not plan.items and not plan.swap_outs:
            return 0.0
        context = sum(item.start + item.num_tokens for item in plan.items)
        moved = len(plan.swap_outs) + len(plan.swap_ins)
        return (
            self.step_s
            + len(plan.tokens) * self.token_s
            + context * self.context_token_s
            + moved * self.block_swap_s
        )

    def compute_seconds(self, num_tokens: int) -> float:
        return num_tokens * self.token_s

    def swap_seconds(self, num_blocks: int) -> float:
        """Out and in again."""
        return 2 * num_blocks * self.block_swap_s

    def service_seconds(self, sequence: Sequence, num_left: int) -> float:
        """Seconds of work until a sequence with `num_left` tokens to draw is done, waiting not included.

        A prompt part that a prefix hit spares is not work.
        """
        computed = max(sequence.num_computed, sequence.num_hit)
        return self.compute_seconds(sequence.num_tokens - computed) + num_left * self.step_s
