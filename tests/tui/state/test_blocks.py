"""Markdown in pieces becomes the blocks that the whole of it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from edgecloud.app.tui.state.blocks import BlockSplitter, split

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

DOCUMENTS = [
    "# Title\nprose\nmore prose\n\nanother paragraph\n",
    "- a\n- b\n\n  in b\n\n- c\n\nafter the list\n",
    "1. one\n   ```py\n   x\n\n   y\n   ```\n2. two\n",
    "before\n```py\na\n\nb\n```\nafter\n",
    "````\n```\nnot the end\n````\nafter\n",
    "~~~\ncode\n~~~\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\ntext\n",
    "> quote\n> more\n\ntext\n",
    "text\n\n---\n\ntext\n",
    "    indented code\n\n    more of it\n\ntext\n",
    "```\nnever closed\n\nstill code\n",
]

PIECES = st.sampled_from(
    [
        *["# T\n", "words ", "\n", "\n\n", "- item\n", "  - sub\n", "1. one\n"],
        *["```py\n", "```\n", "> q\n", "x", "    c\n", "~~~\n"],
    ]
)


def kinds(text: str) -> list[tuple[str, str]]:
    """The blocks of a text and what stands in them, as markdown-it sees it."""
    return [
        (token.type, token.content)
        for token in PARSER.parse(text)
        if not token.type.endswith("_close") and token.type != "inline"
    ]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_blocks_of_a_document_parse_as_the_whole(document: str) -> None:
    blocks = split(document)

    assert [kind for block in blocks for kind in kinds(block)] == kinds(document)


@given(st.lists(PIECES, max_size=30))
def test_nothing_is_lost_or_moved_however_it_arrives(pieces: list[str]) -> None:
    splitter = BlockSplitter()
    blocks = [block for piece in pieces for block in splitter.feed(piece)]

    assert "".join(blocks) + splitter.open == "".join(pieces)


@given(st.lists(PIECES, max_size=30))
def test_blocks_do_not_depend_on_where_the_text_was_cut(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole, single = BlockSplitter(), BlockSplitter()

    at_once = whole.feed(text)
    one_by_one = [block for character in text for block in single.feed(character)]

    assert (at_once, whole.open) == (one_by_one, single.open)


def test_a_fence_stays_open_until_its_own_end() -> None:
    splitter = BlockSplitter()

    assert splitter.feed("````py\n```\n\n# no heading\n") == []
    assert splitter.in_fence
    assert splitter.feed("````\nafter\n") == ["````py\n```\n\n# no heading\n````\n"]
    assert not splitter.in_fence


def test_a_list_of_sixty_items_is_one_block() -> None:
    splitter = BlockSplitter()
    blocks = [block for number in range(60) for block in splitter.feed(f"- item {number}\n")]

    assert blocks == []
    assert splitter.feed("\nThe end.\n")[0].count("\n- ") == 59


def test_every_line_is_looked_at_once() -> None:
    splitter = BlockSplitter()
    looked: list[str] = []
    begins = splitter._begins_block
    splitter._begins_block = lambda line, *, is_first: looked.append(line) or begins(line, is_first=is_first)  # type: ignore[method-assign, func-returns-value]

    for number in range(500):
        splitter.feed(f"- item {number}\n")

    assert len(looked) == 500
