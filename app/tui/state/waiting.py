"""A prompt that waits its turn, and who is asked for it; kept in a chat's notes until it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from edgecloud.errors import BadRequest
from edgecloud.types import Mode

from .attachments import Prompt, gather
from .commands import unescaped
from .preferences import Preferences

NOTED = "waiting"
"""What these are called in the notes of a chat."""


@dataclass(frozen=True, slots=True)
class Route:
    """Who is asked for one turn instead of what the chat says. Empty is the chat's own."""

    model: str = ""
    mode: Mode | None = None

    @property
    def is_set(self) -> bool:
        return bool(self.model) or self.mode is not None


HERE = Route()
"""What the chat says."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A prompt in the queue, as it was typed and as it will be sent."""

    typed: str
    prompt: Prompt
    route: Route = HERE
    fresh: bool = False


def noted(queue: Sequence[Waiting]) -> list[dict[str, Any]]:
    """What waits, in JSON values. Files are named in what was typed, and read again later."""
    return [
        {"typed": each.typed, "model": each.route.model, "mode": each.route.mode, "fresh": each.fresh}
        for each in queue
    ]


def restored(notes: Mapping[str, Any]) -> tuple[Preferences, list[Waiting]]:
    """What is set for a chat, and what waited when it was left. What of that can't be sent any more as it
    was, since a file of it is gone, say, is part of the draft; what another version wrote is left out.
    """
    queue: list[Waiting] = []
    unsendable: list[str] = []
    kept = notes.get(NOTED)
    for each in kept if isinstance(kept, list) else ():
        typed = each.get("typed") if isinstance(each, dict) else None
        if not isinstance(typed, str):
            continue
        mode = each.get("mode")
        route = Route(str(each.get("model") or ""), mode if mode in get_args(Mode) else None)
        try:
            queue.append(Waiting(typed, gather(unescaped(typed)), route, bool(each.get("fresh"))))
        except BadRequest:
            unsendable.append(typed)
    preferences = Preferences.of(notes)
    draft = "\n".join(filter(None, [*unsendable, preferences.draft]))
    return replace(preferences, draft=draft), queue
