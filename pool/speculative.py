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
INDEXED_PER_STEP = 1024
"""Tokens of all texts together that are noted before one step: two milliseconds. A long prompt is caught
up with over several steps, because everybody waits for a step."""


class NgramProposer:
    """Call `propose` before each step. `num_drafts` bounds a guess, `max_rows` the rows of a step that cost
    little more than one does: on a CPU a few, on a GPU many. Choices that decode come first.
    """

    def __init__(self, num_drafts: int = 6, max_rows: int = 8) -> None:
        self.num_drafts = num_drafts
        self.max_rows = max_rows
        self.num_indexed = 0
        """Tokens whose place has been noted since the start; each is noted once."""
        self._tracks: dict[int, _Track] = {}

    @property
    def num_on(self) -> int:
        """Choices whose guesses are good enough to be verified."""
        return sum(track.is_on for track in self._tracks.values())

    def propose(self, scheduler: Scheduler) -> None:
        """Look at what the running choices have drawn, and hand the scheduler drafts where they earn it."""
        spare = self.max_rows // max(scheduler.num_running, 1) - 1
        num_drafts = 0 if scheduler.num_waiting else min(self.num_drafts, spare)
        allowance = INDEXED_PER_STEP
        tracks: dict[int, _Track] = {}
        drafts: dict[int, tuple[int, ...]] = {}
        for sequence in scheduler.planner.running:
            if sequence.num_pending != 1 or sequence.width != 1:
                continue
            track = tracks[sequence.id] = self._tracks.get(sequence.id) or _Track(sequence.num_prompt)
            track.judge(sequence.tokens)
            allowance -= track.index(sequence.tokens, allowance)
            guess = track.guess(sequence.tokens, self.num_drafts)
            if num_drafts > 0 and guess and track.is_on and self._is_long(scheduler, sequence):
                drafts[sequence.id] = guess[:num_drafts]
        self.num_indexed += INDEXED_PER_STEP - allowance
        self._tracks = tracks
        scheduler.propose(drafts)

    def _is_long(self, scheduler: Scheduler, sequence: Sequence) -> bool:
        expected = sequence.num_output + scheduler.planner.forecast.num_left(sequence)
        return expected > LEAST_OUTPUT


class _Track:
    """One choice: where each run of its tokens stood last, its latest guess, how often guesses came true."""

    __slots__ = ("_ends", "_guess", "_num_indexed", "_num_judged", "_num_seen", "_share", "is_on")

    def __init__(self, num_prompt: int) -> None:
        self.is_on = False
        # By a run of tokens, the place behind its last occurrence but the one at the very end.
        self._ends: dict[tuple[int, ...], int] = {}
        self._guess: tuple[int, ...] = ()
        # Runs are noted that end before this place, and what was drawn is judged up to that one.
        self._num_indexed = 1
        self._num_judged = num_prompt
        self._num_seen = 0
        self._share = 0.0

    def judge(self, tokens: Tokens[int]) -> None:
        """See by what has come whether the last guess was right."""
        for guessed, token in zip(self._guess, tokens[self._num_judged :], strict=False):
            self._note(guessed == token)
            if guessed != token:
                break
        self._num_judged = len(tokens)

    def index(self, tokens: Tokens[int], most: int) -> int:
        """Note the runs that end at the next `most` tokens; returns how many there were.

        Not those that end at the last token of all: what follows them is not known.
        """
        start = self._num_indexed
        self._num_indexed = max(min(len(tokens), start + most), start)
        for end in range(start, self._num_indexed):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self._ends[tuple(tokens[end - length : end])] = end
        return self._num_indexed - start

    def guess(self, tokens: Tokens[int], num_drafts: int) -> tuple[int, ...]:
        """What may come next; () for no idea."""
        self._guess = ()
        for length in range(min(LONGEST, len(tokens)), SHORTEST - 1, -1):
            before = self._ends.get(tuple(tokens[-length:]))
            if before is not None:
                # The end of the text follows it too: what goes round is guessed to go on going round.
                known = tokens[before : before + num_drafts]
                self._guess = tuple(known[at % len(known)] for at in range(num_drafts))
                break
        return self._guess

    def _note(self, is_right: bool) -> None:
        self._num_seen += 1
        self._share += (is_right - self._share) / min(self._num_seen, MEMORY)
        if self._num_seen >= LEAST_SEEN:
            if self._share > ON_ABOVE:
                self.is_on = True
            elif self._share < OFF_BELOW:
                self.is_on = False
