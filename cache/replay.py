"""A complete answer as bytes, and back: the events of its stream, piece for piece, so that a replay streams
as it did live.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

from edgecloud.types import ChoiceDone, Done, EngineEvent, Notice, Start, ToolCallDelta
from edgecloud.wire import native

from .records import text_of

_REFUSAL = re.compile(
    r"""^\W*(?: i'?m\ (?:really\ |very\ |so\ )?sorry | sorry, |
    i\ (?:can'?t|cannot|can\ not|won't|will\ not)\ | i(?:\ am|'m)\ (?:unable|not\ able) |
    as\ an?\ (?:ai|artificial|language) | unfortunately,\ i\ )""",
    re.IGNORECASE | re.VERBOSE,
)


def pack(events: Sequence[EngineEvent]) -> bytes:
    """The events as compressed JSON lines. What was only of that moment (notices) is left out."""
    kept = (event for event in events if not isinstance(event, Notice))
    lines = (json.dumps(native.dump(event), ensure_ascii=False) for event in kept)
    return zlib.compress("\n".join(lines).encode("utf-8", "surrogatepass"), 6)


def unpack(data: bytes) -> tuple[EngineEvent, ...]:
    """What `pack` kept."""
    return tuple(native.load(piece) for piece in _pieces(data))


def text_in(data: bytes) -> str:
    """The text of the first choice in a packed answer. No events are made for it, so that a long answer which
    is only compared or listed costs a fraction of one that is given.
    """
    return "".join(
        piece["text"] for piece in _pieces(data) if piece["type"] == "TextDelta" and not piece.get("index")
    )


def _pieces(data: bytes) -> list[dict[str, Any]]:
    # A line break inside a string is escaped, so every one parts two objects. One call parses them all.
    lines = zlib.decompress(data).decode("utf-8", "surrogatepass")
    pieces: list[dict[str, Any]] = json.loads(f"[{lines.replace(chr(10), ',')}]")
    return pieces


def worth_keeping(events: Sequence[EngineEvent]) -> str:
    """Why an answer must not be kept, or ''.

    Kept are answers that came to their own end: not cut at a length or by anybody, no refusals, no calls.
    """
    if not events or not isinstance(events[0], Start) or not isinstance(events[-1], Done):
        return "it is not complete"
    if any(isinstance(event, Notice) and event.kind in ("continued", "truncated") for event in events):
        return "it was not given in one piece"
    if any(isinstance(event, ToolCallDelta) for event in events):
        return "it calls tools"
    if any(event.reason != "stop" for event in events if isinstance(event, ChoiceDone)):
        return "it was cut at its length"
    text = text_of(events)
    if not any(character.isalnum() for character in text):
        return "there is nothing in it"
    if _REFUSAL.match(text):
        return "it refuses"
    return ""
