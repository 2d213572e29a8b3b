"""Learns from the steps that run how long things take here, for a scheduler that weighs them."""

from __future__ import annotations

from .costs import StepCosts
from .plan import StepPlan

# Steps that a mean reaches back, about: enough to smooth, few enough to follow the load.
MEMORY = 50
# What a token or a block takes at least, seconds: a cost of nothing would make every choice look free.
LEAST_S = 1e-9


class CostMeter:
    """Corrects `costs` while a scheduler uses them; both in one thread.

    A step of decodes alone tells what a step takes at the present load. Prompt tokens beside them, and blocks
    moved, are what it takes beyond that.
    """

    def __init__(self, costs: StepCosts) -> None:
        self.costs = costs
        self._num_seen = {"step_s": 0, "token_s": 0, "block_swap_s": 0}

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from a step that was carried out in `seconds`."""
        costs = self.costs
        num_prompt = sum(item.num_tokens for item in plan.items if item.num_tokens - item.num_drafts > 1)
        num_moved = len(plan.swap_outs) + len(plan.swap_ins)
        if num_moved:
            beyond = seconds - costs.step_s - costs.compute_seconds(num_prompt)
            self._learn("block_swap_s", beyond / num_moved)
        elif num_prompt:
            self._learn("token_s", (seconds - costs.step_s) / num_prompt)
        else:
            self._learn("step_s", seconds)

    def _learn(self, name: str, seconds: float) -> None:
        seen = self._num_seen[name] = self._num_seen[name] + 1
        known = getattr(self.costs, name)
        # The first replaces the default, which is of another machine.
        setattr(self.costs, name, known + (max(seconds, LEAST_S) - known) / min(seen, MEMORY))
