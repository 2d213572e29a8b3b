"""Every key that does something, by the id of what it does, and what sentences call it once it is changed."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from .commands import COMMANDS

KEYS: Mapping[str, str] = {
    **{f"chat.{command.name}": command.key for command in COMMANDS if command.key},
    "chat.palette": "ctrl+p",
    "chat.interrupt": "ctrl+c,super+c",
    "chat.hush": "escape",
    "prompt.newline": "ctrl+j,shift+enter",
    "prompt.earlier": "up",
    "prompt.later": "down",
    "prompt.page_up": "pageup",
    "prompt.page_down": "pagedown",
    "messages.up": "up,k",
    "messages.down": "down,j",
    "messages.home": "home",
    "messages.end": "end",
    "messages.receipt": "enter",
    "chats.search": "slash",
    "chats.rename": "f2",
    "chats.delete": "delete",
    "compare.left": "1",
    "compare.right": "2",
    "compare.leave": "escape",
    "dashboard.close": "escape,q,f3",
    "dialog.close": "escape",
    "dialog.done": "ctrl+j,f10",
    "confirm.yes": "y",
    "confirm.no": "escape,n",
    "reader.close": "q,enter",
    "picker.down": "down",
    "picker.up": "up",
}
"""Keys by id, as Textual writes them, the first to be named first."""

_NAMES = {
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "escape": "Esc",
    "pageup": "PageUp",
    "pagedown": "PageDown",
    "plus": "+",
    "minus": "-",
    "slash": "/",
}
_MARK = re.compile(r"\{([a-z]+\.[a-z_]+)\}")


class Keys:
    """`changed` are the user's keys by id."""

    def __init__(self, changed: Mapping[str, str] = {}) -> None:
        chosen = {id: [key.strip() for key in keys.split(",")] for id, keys in changed.items() if keys}
        self.chosen = frozenset(key for keys in chosen.values() for key in keys)
        """The keys that the user wants for something."""
        self._first = {id: keys.split(",")[0] for id, keys in KEYS.items()}
        self._first |= {id: keys[0] for id, keys in chosen.items()}

    def fill(self, sentence: str) -> str:
        """A sentence of ours with the names of the keys where their ids stand in braces."""
        return _MARK.sub(lambda mark: self.name(mark[1]), sentence)

    def name(self, id: str) -> str:
        """What the first key with this id is called."""
        return key_name(self._first[id])


def key_name(key: str) -> str:
    """A key as it is printed on keyboards: Ctrl+T for ctrl+t."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    if last in _NAMES:
        name = _NAMES[last]
    elif len(last) == 1:
        name = last.upper() if modifiers else last
    else:
        try:
            name = unicodedata.lookup(last.replace("_", " "))
        except KeyError:
            name = last.capitalize()
    return "+".join([*(modifier.capitalize() for modifier in modifiers), name])
