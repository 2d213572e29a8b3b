"""Bindings and hints from the one table of keys: a key that is changed is changed in every sentence too."""

from __future__ import annotations

import unicodedata

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys as Pressed

from .state.keys import KEYS, Keys

MODIFIERS = frozenset({"ctrl", "shift", "alt", "super", "hyper", "meta"})
NAMED = frozenset({key.value.split("+")[-1] for key in Pressed} | {"plus", "minus", "slash"})
"""Keys that are called neither by their sign nor by its name in Unicode."""


def bound(id: str, action: str, description: str = "", *, priority: bool = False) -> Binding:
    """The binding with this id; the help tells those that have a description."""
    return Binding(KEYS[id], action, description, id=id, priority=priority, show=False)


def keys_of(node: DOMNode) -> Keys:
    """The keys of the app that a widget is in."""
    keys = getattr(node.app, "keys", None)
    return keys if isinstance(keys, Keys) else Keys()


def can_be_pressed(key: str) -> bool:
    """Whether a key is written as Textual writes one, `ctrl+g`: else nothing would ever be it."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    if not MODIFIERS.issuperset(modifiers):
        return False
    try:
        return len(last) == 1 or last in NAMED or bool(unicodedata.lookup(last.replace("_", " ")))
    except KeyError:
        return False
