"""Choosing from a list, of models say: where each runs and how it is; typing narrows the list."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import ClassVar, NamedTuple

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from edgecloud.errors import EdgeCloudError
from edgecloud.types import Health, ModelCard
from edgecloud.units import size

from ..keys import bound, keys_of
from ..widgets.label import Label, visible


class Choice(NamedTuple):
    """Something that can be chosen: what is returned, what stands there, and what is said about it."""

    value: str
    name: str
    about: str


class Picker(ModalScreen[str | None]):
    """A list of choices; None if it was left. What was typed is returned if it fits none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bound("dialog.close", "dismiss(None)", "close"),
        bound("picker.down", "move(1)"),
        bound("picker.up", "move(-1)"),
    ]

    def __init__(
        self,
        title: str,
        load: Callable[[], Coroutine[None, None, Sequence[Choice]]],
        *,
        current: str = "",
        other: str = "",
    ) -> None:
        super().__init__()
        self.heading = title
        self.load = load
        self.current = current
        self.other = other
        """What Enter does with a name that is not in the list; empty if it does nothing."""
        self._choices: Sequence[Choice] = ()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self.heading, classes="heading")
            yield Input(placeholder="type to narrow", compact=True)
            yield OptionList(markup=False, compact=True)
            yield Label("looking …", classes="hint")

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False
        self.fill()

    @work(exclusive=True, exit_on_error=False)
    async def fill(self) -> None:
        try:
            self._choices = await self.load()
        except EdgeCloudError as error:
            self.query_one(".hint", Label).show(error.message)
            return
        self._show("")

    @on(Input.Changed)
    def typed(self, event: Input.Changed) -> None:
        self._show(event.value)

    @on(Input.Submitted)
    def submitted(self, event: Input.Submitted) -> None:
        listed = self.query_one(OptionList)
        if listed.highlighted is not None:
            self.dismiss(listed.get_option_at_index(listed.highlighted).id)
        elif event.value.strip() and self.other:
            self.dismiss(event.value.strip())

    @on(OptionList.OptionSelected)
    def selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_move(self, by: int) -> None:
        listed = self.query_one(OptionList)
        if by > 0:
            listed.action_cursor_down()
        else:
            listed.action_cursor_up()

    def _show(self, typed: str) -> None:
        listed = self.query_one(OptionList)
        fitting = [
            choice for choice in self._choices if typed.lower() in f"{choice.name} {choice.about}".lower()
        ]
        width = max((len(choice.name) for choice in fitting), default=0)
        listed.clear_options()
        listed.add_options(
            Option(
                Content.assemble(
                    visible(choice.name).ljust(width), "  ", (visible(choice.about), "$foreground-muted")
                ),
                id=choice.value,
            )
            for choice in fitting
        )
        values = [choice.value for choice in fitting]
        listed.highlighted = values.index(self.current) if self.current in values else 0 if values else None
        hint = keys_of(self).fill("Enter chooses, {dialog.close} leaves it as it was")
        self.query_one(".hint", Label).show(hint if fitting else self.other or "nothing matches")


def model_choices(cards: Sequence[ModelCard], health: Health | None) -> list[Choice]:
    """The models that can answer, with what is known of each."""
    used = {use.model: use for use in health.kv} if health else {}
    choices = []
    for card in cards:
        if card.kind == "embedding":
            continue
        if card.kind == "auto":
            choices.append(Choice("auto", "auto", f"the router chooses; alone it is {card.detail}"))
            continue
        facts = ["on a pool" if card.engine == "pool" else "on this machine", card.detail]
        if card.loaded:
            facts.append(f"loaded, {size(card.memory)} of memory" if card.memory else "loaded")
        elif card.size:
            facts.append(size(card.size))
        if card.context:
            facts.append(f"{card.context:,} tokens of context")
        if card.id in used:
            use = used[card.id]
            facts.append(f"{use.used * 100 // max(1, use.cells)} % of its context in use")
        choices.append(Choice(card.id, card.id, ", ".join(fact for fact in facts if fact)))
    if health is not None and (health.running or health.waiting):
        busy = f"{health.running} answers running, {health.waiting} waiting"
        choices = [
            choice._replace(about=f"{choice.about}; {busy}") if choice.value == "auto" else choice
            for choice in choices
        ]
    return choices
