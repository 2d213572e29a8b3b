"""The words around the messages: badges, the frame of the prompt, what waits, how an empty chat begins."""

from __future__ import annotations

from collections.abc import Sequence

from edgecloud.settings import Settings

from .commands import matching
from .keys import Keys
from .preferences import Preferences
from .preview import Preview

MAX_OFFERS = 12


def badges(settings: Settings, chosen: Preferences) -> list[str]:
    """What holds for this chat and is not usual."""
    words = [
        "offline" if settings.offline else "",
        "private" if chosen.private else "",
        chosen.described(),
        "system prompt" if chosen.system else "",
        chosen.model if chosen.model != "auto" else "",
    ]
    return [word for word in words if word]


def frame(settings: Settings, chosen: Preferences, would: Preview, *, turn: str, is_editing: bool) -> str:
    """What the frame of the prompt says of where it goes. `turn` is who was chosen for this one."""
    if is_editing:
        return "edit"
    if chosen.private:
        return "private: this machine only"
    if settings.offline:
        return "offline: this machine only"
    if turn:
        return f"this turn: {turn}"
    return "this machine" if would.is_local else chosen.model or "auto"


def queue(typed: Sequence[str], keys: Keys, *, is_running: bool) -> str:
    """What waits, and what can be done about it; empty if nothing does."""
    if not typed:
        return ""
    waits = "waits" if len(typed) == 1 else "wait"
    act = "" if is_running else ", Enter sends"
    return f"{len(typed)} {waits} · {keys.name('prompt.earlier')} takes back{act}: {typed[-1][:60]}"


def who(settings: Settings, model: str) -> str:
    """Who answers as `model`: where the router has no choice, `auto` has a name."""
    is_alone = settings.offline or not settings.pool
    return settings.model if model == "auto" and is_alone else model


def welcome(settings: Settings, model: str) -> str:
    """Who answers here, for somebody who sees this for the first time."""
    if any(model == entry.name for entry in settings.pool):
        return f"{model} answers, a server of the pool; /private stays on this machine."
    is_alone = settings.offline or not settings.pool or model != "auto"
    where = "here, nothing is sent anywhere" if is_alone else "here, or a pool does"
    return f"{settings.model if model == 'auto' else model} answers {where}; /pull gets a larger model."


def suggestions(typed: str) -> str:
    """The commands that a `/` may become, and what the first of them does; empty if it is none."""
    commands = matching(typed)
    if not commands:
        return ""
    names = "   ".join(f"/{command.name} {command.argument}".rstrip() for command in commands[:8])
    return f"{names}\n{commands[0].help}"


def offers(names: Sequence[str]) -> str:
    """Names of files that may be meant, as many as are read at a glance."""
    more = f"   and {len(names) - MAX_OFFERS} more" if len(names) > MAX_OFFERS else ""
    return "   ".join(names[:MAX_OFFERS]) + more
