"""Help that follows the focus, with the keys as they are bound now."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.widgets import HelpPanel, KeyPanel, Markdown
from textual.widgets._key_panel import BindingsTable

from ..keys import keys_of
from ..state.keys import KEYS, key_name


class Help(HelpPanel):
    """Textual's, whose texts (`HELP`) name keys by their ids in braces."""

    def compose(self) -> ComposeResult:
        yield _Filled(id="widget-help")
        yield _OwnKeys(id="keys-help")


class _Filled(Markdown):
    def update(self, markdown: str) -> AwaitComplete:
        return super().update(keys_of(self).fill(markdown))


class _OwnKeys(KeyPanel):
    def compose(self) -> ComposeResult:
        yield _OwnTable(shrink=True, expand=False)


class _OwnTable(BindingsTable):
    """The keys of the chat, those of what is focused first. How a text area moves its cursor is no news."""

    def render_bindings_table(self) -> Table:
        keys: dict[str, list[str]] = {}
        said: dict[str, str] = {}
        for _, binding, enabled, _ in self.screen.active_bindings.values():
            if enabled and binding.id and binding.id in KEYS and binding.description:
                keys.setdefault(binding.id, []).append(key_name(binding.key))
                said[binding.id] = binding.description
        table = Table.grid(padding=(0, 1))
        table.add_column(justify="right", no_wrap=True)
        style = self.get_component_rich_style("bindings-table--key")
        for id, names in sorted(keys.items(), key=lambda row: row[0] != "chat.hush"):  # the way out first
            table.add_row(Text("\n".join(names), style=style), Text(said[id]))
        return table
