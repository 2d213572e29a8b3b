"""How much prefill may share a step, so that a newcomer's long prompt can't stall running streams."""

from __future__ import annotations

# llama.cpp's attention on a CPU takes the rows of a batch in tiles of so many. A last tile that isn't full
# costs as much as a full one; a batch smaller than a tile goes row by row, each a third dearer.
TILE_ROWS = 64


class PrefillPacer:
    """Learns what a token costs and turns a target step time into a number of prompt tokens.

    `step_s` is the target in seconds while other sequences decode; whole tiles come before it, so a step may
    take a third longer. Alone, a step may take `SOLO` times as long: still short enough for a cancellation
    or a newcomer to be seen, and long enough for the kernels' full speed.
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
        rows = min(whole_tiles(int(target / self._token_s)), self._n_batch)
        return max(self.MIN_CHUNK, rows - num_decoding)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` tokens, prefill among them, took `seconds`.

        The cost per token is taken at the size in use, so overheads are in it and the budget settles where a
        step takes the target time.
        """
        if num_tokens >= self.MIN_CHUNK:
            self._token_s += self._WEIGHT * (seconds / num_tokens - self._token_s)


def whole_tiles(rows: int) -> int:
    """The nearest number of rows that fills its tiles; fewer than three quarters of one stay as they are."""
    if rows < TILE_ROWS * 3 // 4:
        return rows
    return max(1, round(rows / TILE_ROWS)) * TILE_ROWS


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
