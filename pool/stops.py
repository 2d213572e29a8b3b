"""Stop strings, found between draw and commit: no token behind one is kept, counted or computed on."""

from __future__ import annotations

from collections.abc import Callable

from edgecloud.text import StopMatcher, Utf8Stream

from .runner import Draw


class StopFinder:
    """Reads one choice's tokens as they are drawn. The first `min_tokens` of them end nothing, whatever they
    spell.
    """

    def __init__(self, stops: tuple[str, ...], spell: Callable[[int], bytes], min_tokens: int = 0) -> None:
        self._spell = spell
        self._utf8 = Utf8Stream()
        self._matcher = StopMatcher(stops)
        self._num_exempt = min_tokens

    def cut(self, draw: Draw) -> Draw:
        """The draw up to the token that completes a stop string, if one does.

        Several tokens come at once where drafts were accepted: what follows the stop was never said.
        """
        for index, token in enumerate(draw.tokens):
            text = self._utf8.feed(self._spell(token))
            if self._num_exempt:
                self._num_exempt -= 1
            elif text and self._matcher.feed(text)[1] is not None:
                return Draw(draw.tokens[: index + 1], True, draw.scores[: index + 1])
        return draw
