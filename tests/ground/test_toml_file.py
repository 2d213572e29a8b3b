"""Changing a file that people write too, in every way that TOML lets them."""

from __future__ import annotations

import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecloud.errors import ConfigError
from edgecloud.toml_file import changed, line_of, replace_text

PATH = Path("config.toml")
ENTRY = {"name": "new", "url": "http://new/v1", "replicas": [{"url": "http://other/v1"}]}

TOP = st.sampled_from(
    [
        "",
        "# mine\n",
        "model = 'x'  # small\r\n",
        "server.port = 1\n",
        "server = {port = 1}\n",
        '"server".port = 1 # p\n',
    ]
)
POOLS_ON_TOP = st.sampled_from(
    [
        "pool = []\n",
        "pool = [\n  # none yet\n]\n",
        "pool = [{name = 'a', url = 'u'}]\n",
        "pool = [\n  {name = 'a'}, # one\n  {name = 'b'}, # two\n]\n",
        "pool = [\n  {name = 'b'},\n  {name = 'a'}\n]\n",
    ]
)
TABLES = st.sampled_from(
    ["", "# end\n", "[chat.keys]\nx = 'y'\n", "  [chat]\n  theme = 'dark'\n", "[chat]\nkeys.x = 'y' # k\n"]
)
POOL_TABLES = st.sampled_from(
    [
        "[[pool]]\nname = 'a'\n",
        "[[pool]]\nname = 'b'\n[[pool.replicas]]\nurl = 'r'\n[[pool]]\nname = 'a'\n",
        "[[pool]]\nname = 'a'\n[budget]\nper_day = 1.0\n[[pool]]\nname = 'b'\n",
    ]
)
FILES = st.one_of(
    st.tuples(TOP, POOLS_ON_TOP, TABLES), st.tuples(TOP, TABLES, POOL_TABLES), st.tuples(TOP, TABLES)
).map("".join)


def add(document: Any) -> None:
    if document.get("pool"):
        document["pool"].append(ENTRY)
    else:
        document["pool"] = [ENTRY]


def remove(document: Any) -> None:
    places = [place for place, entry in enumerate(document.get("pool", ())) if entry["name"] == "a"]
    for place in places:
        del document["pool"][place]
        if not document["pool"]:
            del document["pool"]


def put(table: str, name: str, value: object) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        if table not in document:
            document[table] = {}
        document[table][name] = value

    return change


CHANGES = st.sampled_from(
    [add, remove, put("server", "port", 2), put("server", "host", "h"), put("aliases", "gpt-4.1", "x")]
)


@given(FILES, st.booleans(), st.lists(CHANGES, min_size=1, max_size=5))
def test_whatever_the_file_looks_like_it_says_afterwards_what_was_meant(
    text: str, cut: bool, changes: list[Callable[[Any], None]]
) -> None:
    text = text.rstrip("\r\n") if cut else text
    wanted = tomllib.loads(text)
    comments = {line.partition("#")[2] for line in text.splitlines() if "#" in line}

    for change in changes:
        change(wanted)
        text = changed(text, change, PATH)

    assert tomllib.loads(text) == wanted
    assert comments - {" one", " none yet"} <= {line.partition("#")[2] for line in text.splitlines()}


@pytest.mark.parametrize("value", [lambda document: object(), lambda document: type(document).__name__])
def test_what_cannot_be_changed_is_refused_in_a_sentence(value: Callable[[Any], object]) -> None:
    """A value that TOML has no word for, and one that differs in the text, stand for whatever goes wrong."""
    with pytest.raises(ConfigError, match=r"^config\.toml is written in a way .*`edgecloud config edit`"):
        changed("a = 1\n", lambda document: document.update(b=value(document)), PATH)


def test_the_tables_of_a_list_have_lines_of_their_own() -> None:
    text = "[[pool]]\nname = 'a\u2028z'\n[[pool]]\n# b\nname = 'b'\n[[pool.replicas]]\nurl = 'u'\n"

    assert line_of(("pool",), text) == 1
    assert line_of(("pool", "1"), text) == 3
    assert line_of(("pool", "1", "name"), text) == 5
    assert line_of(("pool", "2"), text) is None


def set_port(document: Any) -> None:
    document["port"] = 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("port = 1\n", "port = 2\n"),
        ("port = 1", "port = 2\n"),
        ("port = 1 # mine\n\n[chat]\n", "port = 2 # mine\n\n[chat]\n"),
        ("", "port = 2\n"),
    ],
)
def test_nothing_but_the_value_changes(before: str, after: str) -> None:
    assert changed(before, set_port, PATH) == after


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_as_they_did(tmp_path: Path, end: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(f"port = 1{end}theme = 'dark'{end}".encode())
    replace_text(path, "port = 2\ntheme = 'dark'\n")
    assert path.read_bytes() == f"port = 2{end}theme = 'dark'{end}".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
