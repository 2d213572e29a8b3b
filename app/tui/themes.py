"""The colours that there are by name: Textual's themes, and short names for three of them."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES

from edgecloud.errors import ConfigError

SHORT = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}


def theme_called(name: str) -> str:
    """Textual's name of a theme. Raises `ConfigError` for one that there isn't."""
    found = SHORT.get(name, name)
    if found not in BUILTIN_THEMES:
        known = ", ".join([*SHORT, *sorted(BUILTIN_THEMES)])
        raise ConfigError(f"There is no theme {name[:40]!r}; those that there are: {known}.")
    return found
