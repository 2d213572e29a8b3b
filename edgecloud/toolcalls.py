"""How model families write tool calls, and a parser that streams them out of an answer.

A call is a JSON object with a name and arguments; families differ in what stands around it. What turns out
not to be a call comes out as the text it was.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from edgecloud.errors import BadRequest
from edgecloud.output import Piece
from edgecloud.text import StopMatcher
from edgecloud.types import Constraint, TextDelta, Tool, ToolCallDelta


@dataclass(frozen=True, slots=True)
class ToolMarkup:
    """One family's way: `open` starts the calls, `close` ends them.

    With `separator`, more objects may follow before the close; `array` puts `[` behind the open. `bare`
    families also begin the answer with the object itself. `key` is what the arguments are called.
    """

    open: str
    close: str = ""
    separator: str = ""
    array: bool = False
    bare: bool = False
    key: str = "arguments"


HERMES = ToolMarkup(open="<tool_call>", close="</tool_call>")
PHI4 = ToolMarkup(open="<|tool_call|>", close="<|/tool_call|>")
LLAMA3 = ToolMarkup(open="<|python_tag|>", separator=";", bare=True, key="parameters")
MISTRAL = ToolMarkup(open="[TOOL_CALLS]", close="]", separator=",", array=True)

_ALPHABET = string.ascii_letters + string.digits
_HEAD = re.compile(
    r"""\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)"""
)
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CALL_KEYS = frozenset({"name", "type", "id", "function", "arguments", "parameters"})


def new_call_id() -> str:
    """Nine letters and digits: what Mistral's templates demand of an id next turn; the others take any."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


def call_constraint(markup: ToolMarkup, tools: Sequence[Tool], *, parallel: bool, thinks: bool) -> Constraint:
    """The constraint that makes an answer one call of one of the tools, or with `parallel` one or more; of a
    bare family always one, as its template takes no more.

    A model that `thinks` may finish its thought first.
    """
    for tool in tools:
        if tool.parameters.get("type", "object") != "object":
            raise BadRequest(
                f"The parameters of tool {tool.name!r} must be the schema of an object.", param="tools"
            )
    schemas = [{"type": "object", **tool.parameters} for tool in tools]
    return Constraint("calls", _call_grammar(markup, tools, parallel, thinks), json.dumps(schemas))


def _call_grammar(markup: ToolMarkup, tools: Sequence[Tool], parallel: bool, thinks: bool) -> str:
    """Lark, with the rules `arguments0`, `arguments1` … left to the schemas of the tools."""
    literal = partial(json.dumps, ensure_ascii=False)
    if markup.array:
        more = f' ({literal(markup.separator)} " "? object)*' if parallel else ""
        call = f'{literal(markup.open)} " "? "[" object{more} {literal(markup.close)}'
    elif markup.bare:
        call = "object"
    else:
        call = f'{literal(markup.open)} "\\n" object "\\n"? {literal(markup.close)}'
    objects = [
        f"{literal(_head(tool, markup.key))} arguments{number} {literal('}')}"
        for number, tool in enumerate(tools)
    ]
    several = parallel and not markup.array and not markup.bare
    rules = [
        "start: " + ("THOUGHT? " if thinks else "") + ('call ("\\n" call)*' if several else "call"),
        f"call: {call}",
        f"object: {' | '.join(objects)}",
    ]
    if thinks:
        # What begins as a call does is one: the lexer reads ahead and never goes back.
        rules.append(r"THOUGHT: /((<think>|[^<{\[])([^<]|<[^\/])*)?<\/think>[ \n]*/")
    return "\n".join(rules)


def _head(tool: Tool, key: str) -> str:
    """The text of a call's object up to its arguments."""
    return f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": '


class _Brackets:
    """Follows one JSON object or array through pieces of text, to the bracket that ends it."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, start: int = 0) -> int | None:
        """The offset behind the end of the value, or None if it goes on."""
        for at in range(start, len(text)):
            char = text[at]
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None


class _NotACall(Exception):
    """What was read cannot be a call."""


class _CallReader:
    """Reads one call's object: id and name go out as soon as they are known, the arguments as they come."""

    def __init__(self, call_index: int, *, needs_arguments: bool) -> None:
        self.raw = ""  # all that was read until the name went out
        self.named = False
        self._call_index = call_index
        self._needs_arguments = needs_arguments
        self._object = _Brackets()
        self._arguments: _Brackets | None = None
        self._num_scanned = 0

    def feed(self, text: str) -> tuple[list[Piece], str | None]:
        """Deltas, and the text behind the object once it has ended. Raises `_NotACall` only while unnamed."""
        if self.named:
            return self._stream(text)
        self.raw += text
        head = _HEAD.match(self.raw)
        if head is not None:
            opening = self._opening(_string_of(head[1]))
            self._object, self._arguments = _Brackets(depth=1), _Brackets()
            pieces, behind = self._stream(self.raw[head.end() :])
            return [opening, *pieces], behind
        self._check_beginning()
        end = self._object.feed(self.raw, self._num_scanned)
        self._num_scanned = len(self.raw)
        if end is None:
            return [], None
        name, arguments = _call_of(self.raw[:end], self._needs_arguments)
        return [self._opening(name), ToolCallDelta(self._call_index, arguments=arguments)], self.raw[end:]

    def _opening(self, name: str) -> ToolCallDelta:
        self.named = True
        return ToolCallDelta(self._call_index, id=new_call_id(), name=name)

    def _stream(self, text: str) -> tuple[list[Piece], str | None]:
        pieces: list[Piece] = []
        if self._arguments is not None:
            end = self._arguments.feed(text)
            shown = text[:end]
            if shown:
                pieces.append(ToolCallDelta(self._call_index, arguments=shown))
            if end is None:
                return pieces, None
            self._arguments, text = None, text[end:]
        end = self._object.feed(text)
        return pieces, None if end is None else text[end:]

    def _check_beginning(self) -> None:
        """Give up at the first sign that this is another object, so that an ordinary JSON answer streams."""
        inside = self.raw.lstrip()[1:].lstrip()
        key = _KEY.match(inside)
        if inside[:1] not in ("", '"') or (key is not None and key[1] not in _CALL_KEYS):
            raise _NotACall


def _string_of(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        raise _NotACall from None


def _call_of(text: str, needs_arguments: bool) -> tuple[str, str]:
    """Name and arguments (JSON text) of a call's object, in any of the shapes models write it."""
    try:
        call = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        raise _NotACall from None
    if isinstance(call.get("function"), dict):
        call = call["function"]
    name = call.get("name")
    key = next((key for key in ("arguments", "parameters") if key in call), None)
    if not isinstance(name, str) or not name or (key is None and needs_arguments):
        raise _NotACall
    arguments = (call[key] if key else None) or {}
    if isinstance(arguments, str):
        return name, arguments
    if not isinstance(arguments, dict):
        raise _NotACall
    return name, json.dumps(arguments, ensure_ascii=False)


class ToolCallParser:
    """Text until the family's opening mark, then calls, then text again."""

    def __init__(self, markup: ToolMarkup) -> None:
        self._markup = markup
        self._opener = StopMatcher((markup.open,))
        self._read: Callable[[str, list[Piece]], str] = self._read_text
        self._call: _CallReader | None = None
        self._opened_by = ""
        """What stood before the object that is read or awaited: given back if it is no call."""
        self._held = ""
        self._num_calls = 0
        self._begun = False  # text came since the start or since the last call

    @property
    def made_calls(self) -> bool:
        return self._num_calls > 0

    @property
    def num_held(self) -> int:
        unnamed = len(self._call.raw) if self._call is not None and not self._call.named else 0
        return len(self._opened_by) + unnamed + len(self._held) + self._opener.num_held

    def feed(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text:
            text = self._read(text, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        unnamed = self._call.raw if self._call is not None and not self._call.named else ""
        # Behind a finished call the held text is at most half a closing mark.
        held = "" if self._read == self._read_after_call else self._held
        self._emit(self._opened_by + unnamed + held + self._opener.flush(), pieces)
        self._call, self._opened_by, self._held = None, "", ""
        return pieces

    def _emit(self, text: str, pieces: list[Piece]) -> None:
        if self._num_calls and not self._begun:
            text = text.lstrip()  # layout between calls
        if text:
            self._begun = True
            pieces.append(TextDelta(text))

    # Each reader takes text, may hold some back, and returns what the next reader has to look at.

    def _read_text(self, text: str, pieces: list[Piece]) -> str:
        if self._markup.bare and not self._begun:
            text, self._held = self._held + text, ""
            start = text.lstrip()
            if not start:
                self._held = text
                return ""
            if start[0] == "{":
                self._opened_by, self._read = "", self._read_opened
                return text
        shown, opened = self._opener.feed(text)
        self._emit(shown, pieces)
        if opened is None:
            return ""
        rest, self._opener = self._opener.rest, StopMatcher((self._markup.open,))
        self._opened_by, self._read = opened, self._read_opened
        return rest

    def _read_opened(self, text: str, pieces: list[Piece]) -> str:
        text, self._held = self._held + text, ""
        start = text.lstrip()
        if self._markup.array:
            start = start.removeprefix("[").lstrip()
        if not start:
            self._held = text
            return ""
        if start[0] != "{":
            self._emit(self._opened_by, pieces)
            self._opened_by, self._read = "", self._read_text
            return text
        self._opened_by += text[: len(text) - len(start)]
        self._call = _CallReader(self._num_calls, needs_arguments=self._markup.bare)
        self._read = self._read_call
        return start

    def _read_call(self, text: str, pieces: list[Piece]) -> str:
        call = self._call
        if call is None:
            raise RuntimeError("a tool call is read, but none is open")
        was_named = call.named
        try:
            new, behind = call.feed(text)
        except _NotACall:
            self._emit(self._opened_by, pieces)
            self._begun = True
            self._call, self._opened_by, self._read = None, "", self._read_text
            return call.raw
        pieces += new
        if call.named and not was_named:
            self._num_calls += 1
            self._opened_by, self._begun = "", False
        if behind is None:
            return ""
        self._call, self._read = None, self._read_after_call
        return behind

    def _read_after_call(self, text: str, pieces: list[Piece]) -> str:
        text, self._held = self._held + text, ""
        start = text.lstrip()
        close, separator = self._markup.close, self._markup.separator
        if close.startswith(start) and start != close:  # nothing yet, or half a closing mark
            self._held = text
            return ""
        if separator and start.startswith(separator):
            self._opened_by, self._read = separator, self._read_opened
            return start[len(separator) :]
        self._read = self._read_text
        return start[len(close) :] if close and start.startswith(close) else start
