"""Which messages of a long chat are on the screen's list: the latest, and more when somebody scrolls up."""

from __future__ import annotations

from dataclasses import dataclass

TAIL = 20
"""Messages shown when a chat opens."""

BATCH = 20
"""Messages added when the top is reached."""

LIMIT = 80
"""Messages after which those at the top are put away again, while the end is followed."""


@dataclass(frozen=True, slots=True)
class Window:
    """Messages `start` to `end` of a chat are shown, and those before can be."""

    start: int
    end: int

    @classmethod
    def tail(cls, num_messages: int) -> Window:
        """The end of a chat."""
        return cls(max(0, num_messages - TAIL), num_messages)

    def earlier(self) -> Window:
        """With one batch more at the top."""
        return Window(max(0, self.start - BATCH), self.end)

    def grown(self, num_messages: int, *, at_end: bool) -> Window:
        """After messages were added at the end. Who reads further up keeps what is there."""
        start = self.start
        if at_end and num_messages - start > LIMIT:
            start = num_messages - TAIL
        return Window(start, num_messages)

    def holding(self, index: int) -> Window:
        """With message `index` in it, as a search hit wants."""
        return self if index >= self.start else Window(max(0, index - BATCH // 2), self.end)
