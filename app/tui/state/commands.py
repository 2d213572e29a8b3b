"""Everything the chat can be told, in one table: `/name` in the prompt, the command palette and keys."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from edgecloud.errors import BadRequest

Where = Literal["anywhere", "prompt", "answer"]


@dataclass(frozen=True, slots=True)
class Command:
    """`key` is its first binding, under the id `chat.<name>`; on an answer it is a plain letter, which types
    where text is typed. `argument` is what may follow the name."""

    name: str
    help: str
    key: str = ""
    argument: str = ""
    where: Where = "anywhere"


COMMANDS = (
    Command("new", "start a new chat", "ctrl+n"),
    Command("chats", "show or hide the list of chats", "ctrl+o"),
    Command("all", "list what programs asked over HTTP too, or no longer", "f5"),
    Command("search", "find words in all chats", argument="words"),
    Command("rename", "give this chat another title", argument="title"),
    Command("delete", "delete this chat and all that was derived from it"),
    Command("export", "write this chat to a new file, .md or .json", argument="file"),
    Command("import", "read a chat from a file, .md or .json", argument="file"),
    Command("model", "choose who answers in this chat", "f2", "name"),
    Command("pull", "get a model from the hub", argument="hf:owner/repo:QUANT"),
    Command("route", "choose who answers the next prompt", "ctrl+t", "auto | local | pool | name"),
    Command("private", "keep this chat on this machine, or no longer"),
    Command("preview", "show what would be sent, and to whom"),
    Command("system", "set the system prompt of this chat", argument="text"),
    Command("set", "set a parameter of this chat, such as temperature 0.2", argument="name value"),
    Command("attach", "add a file to the prompt", argument="path"),
    Command("editor", "write the prompt in $EDITOR", "f4"),
    Command("stop", "stop the answer and keep what came", "escape"),
    Command("regenerate", "answer again, beside this answer", "r", where="answer"),
    Command("continue", "go on where the answer was cut", "g", where="answer"),
    Command("edit", "ask in other words, beside this question", "e", where="answer"),
    Command("fork", "copy the chat up to here into a new one", "f", where="answer"),
    Command("shorten", "go on in a copy with the latest turns, those that fit"),
    Command("next", "show the next branch", "right", where="answer"),
    Command("previous", "show the previous branch", "left", where="answer"),
    Command("why", "say why this answer came from where it came", "w", where="answer"),
    Command("receipt", "open or close the receipt", "o", where="answer"),
    Command("reasoning", "open or close what the model thought", "t", where="answer"),
    Command("copy", "copy the whole message", "y", where="answer"),
    Command("code", "copy a block of code; again for the next one", "c", where="answer"),
    Command("good", "a good answer: the router learns from it", "plus", where="answer"),
    Command("bad", "a bad answer: the router learns from it", "minus", where="answer"),
    Command("forget", "a wrong answer from the cache: give it no more", "x", where="answer"),
    Command("compare", "ask two models side by side", "f6", "model model question"),
    Command("dashboard", "money, tokens, speed and hits", "f3"),
    Command("theme", "change the colours", argument="name"),
    Command("help", "keys and commands for what is focused", "f1"),
    Command("suspend", "back to the shell; fg there comes back here"),
    Command("quit", "leave; what was typed is kept", "ctrl+q"),
)

BY_NAME = {command.name: command for command in COMMANDS}

_TYPED = re.compile(r"/([a-z]+)(?:\s+(.*))?$", re.DOTALL)


class Typed(NamedTuple):
    """A command as it was typed."""

    command: Command
    argument: str


def parse(text: str) -> Typed | None:
    """The command that a prompt is, None for a prompt to be sent: a path, or text after a second slash.

    Raises `BadRequest` for one that there is not.
    """
    match = _TYPED.match(text.strip())
    if match is None:
        return None
    name, argument = match[1], (match[2] or "").strip()
    if name in BY_NAME:
        return Typed(BY_NAME[name], argument)
    near = difflib.get_close_matches(name, BY_NAME, n=1)
    hint = f"Did you mean /{near[0]}?" if near else "/help lists them."
    raise BadRequest(f"There is no command /{name}. {hint} To send it as text, write //{name}.")


def unescaped(text: str) -> str:
    """A prompt as it is sent: `//x` stands for `/x`."""
    stripped = text.lstrip()
    return stripped[1:] if re.match(r"//[a-z]+\b", stripped) else text


def matching(typed: str) -> list[Command]:
    """The commands that what was typed may become, for the line of suggestions."""
    if not re.fullmatch(r"/[a-z]*", typed):
        return []
    return [command for command in COMMANDS if command.name.startswith(typed[1:])]
