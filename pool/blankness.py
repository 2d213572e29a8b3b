"""White space in a row: a model that is held to a format can go on with it for ever, and says nothing."""

from __future__ import annotations

from edgecloud.errors import UpstreamError
from edgecloud.types import EngineEvent, ReasoningDelta, TextDelta, ToolCallDelta

MOST_CHARS = 4096
"""More than tables and drawings have between two words."""


class Blankness:
    """Counts the white space of one answer, all its choices together, since it last said something."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_chars = 0

    def see(self, event: EngineEvent) -> None:
        """Take in one event. Raises `UpstreamError` where there has been too much of it."""
        match event:
            case TextDelta() | ReasoningDelta():
                text = event.text
            case ToolCallDelta():
                text = event.arguments
            case _:
                return
        if text and not text.isspace():
            self._num_chars = 0
            return
        self._num_chars += len(text)
        if self._num_chars > MOST_CHARS:
            raise UpstreamError(
                f"{self._name} sent nothing but white space for {MOST_CHARS} characters: ask again, or for "
                "another format."
            )
