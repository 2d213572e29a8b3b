"""Keys that are changed: what they do, and what every hint calls them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.binding import Binding

import edgecloud.app.tui
from edgecloud.app.tui.state.keys import KEYS, Keys, key_name
from tests.support.fake_engine import FakeEngine

from .chatting import driven, make_app, until

PACKAGE = Path(str(edgecloud.app.tui.__file__)).parent
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "chat.md"
KEY = re.compile(r"\b(?:F\d+|Esc|PageUp|PageDown|Ctrl\+\w+)\b|\^[A-Z]\b|[↑↓]")
NAME_KEYS = ("keys.py", "plain.py")
"""The table itself, and the chat without a screen, whose keys are the terminal's."""
MARK = re.compile(r"\{([a-z]+\.[a-z_]+)\}")


def strings() -> Iterator[tuple[str, str]]:
    """Every string of the chat's code that is no documentation, with its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
                yield path.name, node.value


def bindings() -> Iterator[tuple[str, Binding]]:
    """Every binding that the chat's classes declare, with its class."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "edgecloud.app.tui."):
        for declared in vars(importlib.import_module(module.name)).values():
            if isinstance(declared, type) and declared.__module__ == module.name:
                for binding in vars(declared).get("BINDINGS", ()):
                    assert isinstance(binding, Binding), declared
                    yield declared.__name__, binding


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("ctrl+t", "Ctrl+T"),
        ("shift+enter", "Shift+Enter"),
        ("f5", "F5"),
        ("r", "r"),
        ("R", "R"),
        ("+", "+"),
        ("plus", "+"),
        ("question_mark", "?"),
        ("alt+up", "Alt+↑"),
        ("pageup", "PageUp"),
    ],
)
def test_a_key_is_called_what_stands_on_it(key: str, name: str) -> None:
    assert key_name(key) == name


def test_every_binding_has_an_id_and_the_key_of_the_table() -> None:
    # cases: TB8
    declared = {(where, binding.id, binding.key) for where, binding in bindings()}

    assert [each for each in declared if KEYS.get(each[1] or "") != each[2]] == []
    assert {id for _, id, _ in declared} == set(KEYS)


def test_no_sentence_names_a_key_but_by_its_id() -> None:
    assert [(file, said) for file, said in strings() if KEY.search(said) and file not in NAME_KEYS] == []


def test_every_id_that_a_sentence_names_is_there() -> None:
    named = {id for _, said in strings() for id in MARK.findall(said)}

    assert len(named) > 20
    assert named - set(KEYS) == set()


def test_the_documentation_has_every_id() -> None:
    text = DOCUMENTATION.read_text()
    ids = [id for id in KEYS if not id.startswith("chat.")]

    assert [id for id in ids if f"`{id}`" not in text] == []


def test_a_changed_key_is_called_by_its_first_name() -> None:
    keys = Keys({"chat.all": "ctrl+y, f9", "chat.new": ""})

    assert keys.fill("{chat.all} and {chat.new} and {braces}") == "Ctrl+Y and Ctrl+N and {braces}"


async def test_hints_name_the_keys_as_they_were_changed(tmp_path: Path) -> None:
    # cases: TB8
    changed = {
        "chat.all": "f9",
        "chat.palette": "f8",
        "chat.help": "f7",
        "chat.regenerate": "z",
        "chat.continue": "v",
        "chat.stop": "ctrl+s",
        "prompt.newline": "alt+enter",
        "confirm.yes": "j",
    }
    engine = FakeEngine(hang_at=2)
    async with driven(make_app(tmp_path, engine, keys=changed), size=(120, 30)) as user:
        first = user.screen_text()
        assert "Alt+Enter is a new line, F8 has all commands, F7 helps" in first
        assert "^T who · F8 all · F7 help" in first
        assert "F9 shows programs’ chats too" in first

        await user.ask("one", wait=False)
        await until(lambda: user.session.turn and user.session.turn.text)
        await user.pilot.press("ctrl+s")
        await user.settled()
        assert "Tab, v goes on, z asks again" in user.screen_text()

        await user.pilot.press("f7")
        await until(lambda: "Alt+Enter" in user.screen_text())
        await user.pilot.press("f7")

        user.chat.run_command("delete")
        await until(lambda: len(user.app.screen_stack) > 1)
        await user.pilot.pause()
        assert "j does it" in user.screen_text()
        await user.pilot.press("j")
        await user.settled()
        assert user.session.conversation.path == []


@pytest.mark.parametrize("key", ["ctrl+w", "ctrl+e", "ctrl+q", "f7"])
async def test_a_key_that_is_chosen_is_taken_from_the_prompt(tmp_path: Path, key: str) -> None:
    changed = {"chat.new": key, "chat.quit": "ctrl+x"}
    async with driven(make_app(tmp_path, keys=changed)) as user:
        await user.ask("one")
        await user.type("two words")
        await user.pilot.press(key)
        await user.settled()

        assert user.app.is_running
        assert user.session.conversation.path == []
