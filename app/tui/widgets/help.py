"""Help that follows the focus, with the keys as they are bound now."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.widgets import HelpPanel, KeyPanel, Markdown

from ..keys import keys_of


class Help(HelpPanel):
    """Textual's, whose texts (`HELP`) name keys by their ids in braces."""

    def compose(self) -> ComposeResult:
        yield _Filled(id="widget-help")
        yield KeyPanel(id="keys-help")


class _Filled(Markdown):
    def update(self, markdown: str) -> AwaitComplete:
        return super().update(keys_of(self).fill(markdown))
