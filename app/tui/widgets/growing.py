"""A widget as high as what it holds, which grows while an answer comes."""

from __future__ import annotations

from textual.geometry import Size
from textual.reactive import Reactive
from textual.widget import Widget


class Growing(Widget):
    """Its size is a result of layout and asks for no other. Textual's own has the screen laid out, and all of
    it drawn, a second time for each row that is new. Name it after a container among the bases: styles and
    focus are those of the first.
    """

    virtual_size = Reactive(Size(0, 0), repaint=False)
