"""How much prefill may share a step, so that a newcomer's long prompt can't stall running streams."""

from __future__ import annotations


class PrefillPacer:
    """Learns what a token costs and turns a target step time into a number of prompt tokens.

    `step_s` is the target in seconds while other sequences decode. Alone, a step may take `SOLO` times as
    long: still short enough for a cancellation or a newcomer to be seen, and long enough for the kernels'
    full speed.
    """

    SOLO = 4.0
    MIN_CHUNK = 16
    _FIRST_GUESS_S = 0.004
    _WEIGHT = 0.4

    def __init__(self, step_s: float, n_batch: int) -> None:
        self._step_s = step_s
        self._n_batch = n_batch
        self._token_s = self._FIRST_GUESS_S

    @property
    def token_s(self) -> float:
        """Seconds that a token costs in a step with prefill, as measured lately."""
        return self._token_s

    def budget(self, num_decoding: int) -> int:
        """Prompt tokens for a step in which `num_decoding` sequences also decode one each."""
        target = self._step_s if num_decoding else self._step_s * self.SOLO
        affordable = int(target / self._token_s) - num_decoding
        return max(self.MIN_CHUNK, min(affordable, self._n_batch - num_decoding))

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` tokens, prefill among them, took `seconds`.

        The cost per token is taken at the size in use, so overheads are in it and the budget settles where a
        step takes the target time.
        """
        if num_tokens >= self.MIN_CHUNK:
            self._token_s += self._WEIGHT * (seconds / num_tokens - self._token_s)


def split_budget(budget: int, remaining: list[int]) -> list[int]:
    """Share a prefill budget among prompts with `remaining` tokens each, oldest first.

    The oldest is sure of half, so nothing starves; the rest goes to the shortest first, so that a short
    prompt need not wait for a long one.
    """
    shares = [0] * len(remaining)
    if not remaining:
        return shares
    shares[0] = min(remaining[0], (budget + 1) // 2)
    left = budget - shares[0]
    for at in sorted(range(len(remaining)), key=remaining.__getitem__):
        extra = min(left, remaining[at] - shares[at])
        shares[at] += extra
        left -= extra
    return shares
