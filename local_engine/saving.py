"""Which computed prefixes of one model go to disk, and which are asked for there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .kv import KvMemory
from .pacing import PrefillPacer
from .parked import Parked
from .prefix import common_prefix
from .saved import Fetch, ModelPrefixes
from .sequence import Sequence

# Prompt tokens that no memory holds, from which on the disk is asked for them.
FETCH_TOKENS = 64


class Saving:
    """Decides by what a token costs to compute just now. Without `saved` nothing is kept or found."""

    def __init__(self, saved: ModelPrefixes | None, pacer: PrefillPacer, wake: Callable[[], None]) -> None:
        self._saved = saved
        self._pacer = pacer
        self._wake = wake

    @property
    def num_saved(self) -> int:
        """Prefixes that went to disk."""
        return self._saved.num_saved if self._saved is not None else 0

    @property
    def saved_bytes(self) -> int:
        return self._saved.saved_bytes if self._saved is not None else 0

    def fetch(self, sequence: Sequence, kv: KvMemory, running: Iterable[Sequence]) -> Fetch | None:
        """Ask for the beginning of a prompt of which memory has too little."""
        if self._saved is None or sequence.scores_prompt:
            return None
        shared = (min(common_prefix(other.tokens, sequence.tokens), other.num_computed) for other in running)
        known = max(kv.best_parked(sequence), max(shared, default=0))
        if len(sequence.tokens) - known < FETCH_TOKENS:
            return None
        return self._saved.fetch(
            sequence.tokens,
            known=known,
            most_tokens=kv.num_cells,
            token_s=self._pacer.token_s,
            chat_id=sequence.ticket.job.chat_id,
            wake=self._wake,
        )

    def offer(self, parked: Parked) -> None:
        """Save what leaves main memory, if it is worth it."""
        if self._saved is not None:
            self._saved.offer(parked, self._pacer.token_s)

    def reject(self, fetch: Fetch) -> None:
        """What was fetched does not fit the context."""
        if self._saved is not None:
            self._saved.reject(fetch)

    def is_due(self, kv: KvMemory) -> bool:
        """Whether anything in main memory is worth saving and not saved yet."""
        saved, token_s = self._saved, self._pacer.token_s
        return saved is not None and any(saved.wants(parked, token_s) for parked in kv.parked)

    def save_parked(self, kv: KvMemory) -> None:
        """Save what main memory holds, so that a crash or a power cut doesn't take it."""
        for parked in kv.parked:
            self.offer(parked)
