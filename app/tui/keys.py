"""Bindings and hints from the one table of keys: a key that is changed is changed in every sentence too."""

from __future__ import annotations

from textual.binding import Binding
from textual.dom import DOMNode

from .state.keys import KEYS, Keys


def bound(id: str, action: str, description: str = "", *, priority: bool = False) -> Binding:
    """The binding with this id; the help tells those that have a description."""
    return Binding(KEYS[id], action, description, id=id, priority=priority, show=False)


def keys_of(node: DOMNode) -> Keys:
    """The keys of the app that a widget is in."""
    keys = getattr(node.app, "keys", None)
    return keys if isinstance(keys, Keys) else Keys()
