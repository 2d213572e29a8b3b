"""Commands on what is sent along: the system prompt, parameters, files, and the prompt in an editor."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from edgecloud.errors import BadRequest

from ..screens.dialogs import AskText
from ..state.attachments import gather, is_file
from ..state.preferences import PARAMETERS

if TYPE_CHECKING:
    from ..chat_view import ChatView


async def system(screen: ChatView, text: str) -> None:
    if not text:
        now = screen.session.preferences.system
        typed = await screen.app.push_screen_wait(
            AskText("The system prompt of this chat; empty is none", now, multiline=True)
        )
        if typed is None:
            return
        text = typed
    await screen.session.set_preferences(replace(screen.session.preferences, system=text.strip()))
    await screen.look()
    screen.say("The system prompt holds from the next prompt on." if text.strip() else "No system prompt.")


async def set_(screen: ChatView, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        now = screen.session.preferences.described() or "everything is at the model's own"
        raise BadRequest(f"Now {now}. Say /set NAME VALUE, or default as the value: {', '.join(PARAMETERS)}.")
    if not value.strip() and name in PARAMETERS:
        parameter = PARAMETERS[name]
        typed = await screen.app.push_screen_wait(
            AskText(f"{name}: {parameter.help}; empty is the model's own")
        )
        if typed is None:
            return
        value = typed
    await screen.session.set_preferences(screen.session.preferences.with_parameter(name, value.strip()))
    await screen.look()


async def attach(screen: ChatView, name: str) -> None:
    if not name:
        typed = await screen.app.push_screen_wait(AskText("The file to add"))
        if not typed:
            return
        name = typed
    if not await asyncio.to_thread(is_file, name):
        raise BadRequest(f"There is no file {name[:200]}.")
    mention = f'@"{name}" ' if " " in name else f"@{name} "
    # What can't be sent is said now rather than when the prompt is written.
    prompt = await asyncio.to_thread(gather, mention)
    screen.foresight.check(prompt, screen.route.model or screen.session.preferences.model)
    text = screen.prompt.text
    screen.prompt.insert(
        mention if not text or text[-1].isspace() else " " + mention, screen.prompt.document.end
    )
    screen.prompt.focus()


async def editor(screen: ChatView, _: str) -> None:
    try:
        with screen.app.suspend():
            # Nothing is drawn meanwhile, so nothing is held up; an answer that comes goes on when it is done.
            text = edited(screen.prompt.full_text)
    except SuspendNotSupported:
        raise BadRequest("There is no terminal to lend to an editor here: write in the prompt.") from None
    screen.refresh(layout=True)
    screen.prompt.put(text)


def edited(text: str) -> str:
    """The text as the user's editor leaves it. Raises `BadRequest` if the editor fails."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    try:
        command = shlex.split(named) or ["vi"]
    except ValueError as error:
        raise BadRequest(f"The editor {named} can't be started ({error}): set $EDITOR.") from error
    with tempfile.TemporaryDirectory(prefix="edgecloud-") as folder:
        # The folder is private to the user, and so is what is written in it.
        path = Path(folder) / "prompt.md"
        path.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*command, str(path)], check=False).returncode
        except OSError as error:
            raise BadRequest(f"{command[0]} cannot be started ({error.strerror}): set $EDITOR.") from error
        if code != 0:
            raise BadRequest(f"{command[0]} ended with {code}; the prompt is as it was.")
        try:
            return path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
        except OSError as error:
            raise BadRequest(f"{command[0]} removed its file; the prompt is as it was.") from error
