"""One finished block of Markdown as lines to lay out, or as code to show with its language.

A whole list is one widget's lines here, where a widget an item costs seconds in a long chat. Links show where
they lead, since the text of a link can lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode
from textual.content import Content

from .lines import EMPTY, Layable, Line, Row, Rule, plain_lines
from .table import Align, Table


@dataclass(frozen=True, slots=True)
class Code:
    """A block of code; `language` is its info string's first word."""

    language: str
    text: str


@dataclass(frozen=True, slots=True)
class Prose:
    """Everything else."""

    items: tuple[Layable, ...]


Piece = Code | Prose

_STYLES = {"strong": "bold", "em": "italic", "s": "strike", "link": "$text-accent underline"}
_HEADINGS = {"h1": "bold underline $text-primary", "h2": "bold $text-primary", "h3": "bold"}
_BULLETS = "•◦▪"


def render(text: str) -> list[Piece]:
    """The pieces of one block's Markdown; text that is not Markdown is a paragraph, never an error."""
    root = SyntaxTreeNode(_parser().parse(text))
    pieces: list[Piece] = []
    prose: list[Layable] = []
    for node in root.children:
        if node.type in ("fence", "code_block"):
            if prose:
                pieces.append(Prose(tuple(prose)))
                prose = []
            language = node.info.split()[0] if node.type == "fence" and node.info.strip() else ""
            pieces.append(Code(language, node.content.removesuffix("\n")))
        else:
            prose += [Line(EMPTY)] if prose else []
            prose += _block(node, depth=0)
    return [*pieces, Prose(tuple(prose))] if prose else pieces


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


# ------------------------------------------------------------------------------------------------ blocks


def _block(node: SyntaxTreeNode, depth: int) -> list[Layable]:
    match node.type:
        case "paragraph":
            return [Line(line) for line in _inline(node.children)]
        case "heading":
            style = _HEADINGS.get(node.tag, "bold $foreground 80%")
            return [Line(line.stylize_before(style)) for line in _inline(node.children)]
        case "bullet_list" | "ordered_list":
            return _list(node, depth)
        case "blockquote":
            bar = Content.styled("▎ ", "$foreground-muted")
            return [_indented(item, bar, bar) for item in _blocks(node.children, depth, spaced=True)]
        case "fence" | "code_block":
            code = plain_lines(node.content.removesuffix("\n"), "$text-warning", wrap="fold")
            return [*code]
        case "table":
            return [_table(node)]
        case "hr":
            return [Rule()]
        case _:
            return [*plain_lines(node.content.removesuffix("\n"))]


def _blocks(nodes: Sequence[SyntaxTreeNode], depth: int, *, spaced: bool) -> list[Layable]:
    items: list[Layable] = []
    for node in nodes:
        if spaced and items:
            items.append(Line(EMPTY))
        items += _block(node, depth)
    return items


def _list(node: SyntaxTreeNode, depth: int) -> list[Layable]:
    ordered = node.type == "ordered_list"
    number = int(node.attrs.get("start", 1)) if ordered else 0
    width = len(str(number + len(node.children) - 1)) + 2 if ordered else 2
    hang = Content(" " * width)
    items: list[Layable] = []
    for item in node.children:
        is_loose = any(child.type == "paragraph" and not child.hidden for child in item.children)
        if is_loose and items:
            items.append(Line(EMPTY))
        mark = f"{number}. ".rjust(width) if ordered else f"{_BULLETS[depth % len(_BULLETS)]} "
        lines = _blocks(item.children, depth + (not ordered), spaced=is_loose) or [Line(EMPTY)]
        first, mark = _task(lines[0], mark)
        bullet = Content.styled(mark, "$text-primary")
        items += [_indented(first, bullet, hang), *(_indented(line, hang, hang) for line in lines[1:])]
        number += 1
    return items


def _task(item: Layable, mark: str) -> tuple[Layable, str]:
    """GitHub's task items: the box takes the place of the bullet."""
    if isinstance(item, Line):
        for written, box in (("[ ] ", "☐ "), ("[x] ", "☑ "), ("[X] ", "☑ ")):
            if item.content.plain.startswith(written):
                return Line(item.content[len(written) :], item.first, item.rest, wrap=item.wrap), box
    return item, mark


class _Indented:
    """A table or a rule further in."""

    def __init__(self, item: Layable, first: Content, rest: Content) -> None:
        self.item, self.first, self.rest = item, first, rest

    def layout(self, width: int) -> tuple[list[Row], list[str]]:
        rows, texts = self.item.layout(max(1, width - self.first.cell_length))
        return [
            row._replace(prefix=(self.rest if number else self.first) + row.prefix)
            for number, row in enumerate(rows)
        ], texts


def _indented(item: Layable, first: Content, rest: Content) -> Layable:
    return item.indented(first, rest) if isinstance(item, Line) else _Indented(item, first, rest)


def _table(node: SyntaxTreeNode) -> Table:
    rows = [[_cell(cell) for cell in row.children] for section in node.children for row in section.children]
    aligns: list[Align] = []
    for cell in node.children[0].children[0].children:
        style = str(cell.attrs.get("style", ""))
        aligns.append("right" if "right" in style else "center" if "center" in style else "left")
    header = [cell.stylize_before("bold") for cell in rows[0]]
    return Table(header, rows[1:], aligns)


def _cell(node: SyntaxTreeNode) -> Content:
    lines = _inline(node.children)
    return Content(" ").join(lines) if lines else EMPTY


# ------------------------------------------------------------------------------------------------ inline


def _inline(nodes: Sequence[SyntaxTreeNode]) -> list[Content]:
    """Inline content, a `Content` a line. Soft breaks end one too: models that chat mean the lines that they
    write, of a poem or an address, and so they were shown while they came.
    """
    lines: list[list[tuple[str, str] | str]] = [[]]
    for node in nodes:
        _add(node, "", lines)
    return [Content.assemble(*parts) for parts in lines]


def _add(node: SyntaxTreeNode, style: str, lines: list[list[tuple[str, str] | str]]) -> None:
    match node.type:
        case "text" | "html_inline":
            lines[-1].append((node.content, style) if style else node.content)
        case "code_inline":
            lines[-1].append((node.content, f"{style} $text-warning".strip()))
        case "softbreak" | "hardbreak":
            lines.append([])
        case "image":
            lines[-1].append((f"[{node.content or 'image'}] {node.attrs.get('src', '')}", "italic"))
        case _:
            inner = f"{style} {_STYLES.get(node.type, '')}".strip()
            for child in node.children:
                _add(child, inner, lines)
            if node.type == "link":
                _add_target(node, lines)


def _add_target(node: SyntaxTreeNode, lines: list[list[tuple[str, str] | str]]) -> None:
    target = str(node.attrs.get("href", ""))
    shown = "".join(child.content for child in node.children if child.type == "text")
    if target and shown not in (target, target.removeprefix("mailto:")):
        lines[-1].append((f" ({target})", "$foreground-muted"))
