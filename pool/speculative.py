"""Drafts from the text itself: where the last tokens stood before, what followed them there is tried again.

Code, quotations and tables repeat themselves, and several right guesses are verified in the step that would
have drawn one token. Wrong ones cost a row each, so guesses are watched in silence first, which costs
nothing: only a choice whose guesses come true gets them verified, and none while the engine has better work.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from .scheduler import Scheduler
from .sequence import Sequence

LONGEST, SHORTEST = 4, 2
"""Tokens that must match before what followed is worth a guess; the longest match is believed."""
ON_ABOVE, OFF_BELOW = 0.7, 0.5
LEAST_OUTPUT = 50
"""Expected tokens of an answer below which guessing is not begun."""
LEAST_SEEN = 8
MEMORY = 16


class NgramProposer:
    """Call `propose` before each step. `num_drafts` bounds a guess, `max_rows` the rows of a step that cost
    little more than one does: on a CPU a few, on a GPU many. Choices that decode come first.
    """

    def __init__(self, num_drafts: int = 6, max_rows: int = 8) -> None:
        self.num_drafts = num_drafts
        self.max_rows = max_rows
        self._tracks: dict[int, _Track] = {}

    @property
    def num_on(self) -> int:
        """Choices whose guesses are good enough to be verified."""
        return sum(track.is_on for track in self._tracks.values())

    def propose(self, scheduler: Scheduler) -> None:
        """Look at what the running choices have drawn, and hand the scheduler drafts where they earn it."""
        spare = self.max_rows // max(scheduler.num_running, 1) - 1
        num_drafts = 0 if scheduler.num_waiting else min(self.num_drafts, spare)
        tracks: dict[int, _Track] = {}
        drafts: dict[int, tuple[int, ...]] = {}
        for sequence in scheduler.planner.running:
            if sequence.num_pending != 1 or sequence.width != 1:
                continue
            track = tracks[sequence.id] = self._tracks.get(sequence.id) or _Track()
            guess = track.follow(sequence.tokens, sequence.num_prompt, self.num_drafts)
            if num_drafts > 0 and guess and track.is_on and self._is_long(scheduler, sequence):
                drafts[sequence.id] = guess[:num_drafts]
        self._tracks = tracks
        scheduler.propose(drafts)

    def _is_long(self, scheduler: Scheduler, sequence: Sequence) -> bool:
        expected = sequence.num_output + scheduler.planner.forecast.num_left(sequence)
        return expected > LEAST_OUTPUT


class _Track:
    """One choice: where each run of its tokens stood last, its latest guess, how often guesses came true."""

    __slots__ = ("_ends", "_guess", "_num_seen", "_num_tokens", "_share", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        # By a run of tokens, the place behind its last occurrence but the one at the very end.
        self._ends: dict[tuple[int, ...], int] = {}
        self._guess: tuple[int, ...] = ()
        self._num_tokens = 0
        self._num_seen = 0
        self._share = 0.0

    def follow(self, tokens: Tokens[int], num_prompt: int, num_drafts: int) -> tuple[int, ...]:
        """Judge the last guess by what has come, and make the next."""
        new = tokens[max(self._num_tokens, num_prompt) :]
        for guessed, token in zip(self._guess, new, strict=False):
            self._judge(guessed == token)
            if guessed != token:
                break
        # Runs that end before the last token: what follows them is known.
        for end in range(max(self._num_tokens, 1), len(tokens)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self._ends[tuple(tokens[end - length : end])] = end
        self._num_tokens = len(tokens)
        self._guess = ()
        for length in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            before = self._ends.get(tuple(tokens[-length:]))
            if before is not None:
                self._guess = tuple(tokens[before : before + num_drafts])
                break
        return self._guess

    def _judge(self, is_right: bool) -> None:
        self._num_seen += 1
        self._share += (is_right - self._share) / min(self._num_seen, MEMORY)
        if self._num_seen >= LEAST_SEEN:
            if self._share > ON_ABOVE:
                self.is_on = True
            elif self._share < OFF_BELOW:
                self.is_on = False
