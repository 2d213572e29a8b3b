"""`edgecloud chat`, and `edgecloud` alone: the chat in the terminal, line by line, or in a browser."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, get_args

import click

from edgecloud.errors import BadRequest
from edgecloud.types import Mode

from ..visible import neutral
from . import offers
from .shell import State, Whole, write

if TYPE_CHECKING:
    from ..tui.state.preferences import Preferences

EPILOG = """\b
Exit codes:
  0  left                1  failed              2  wrong usage, or no terminal
  129, 130, 131, 143     ended by a signal; what was said so far is kept
"""


@click.command(epilog=EPILOG)
@click.argument("prompt", nargs=-1)
@click.option(
    "-m", "--model", default="auto", metavar="MODEL", shell_complete=offers.models, help="Who answers."
)
@click.option("-s", "--system", default="", metavar="TEXT", help="The system prompt.")
@click.option("-c", "--continue", "continues", is_flag=True, help="Continue the last chat.")
@click.option(
    "--chat",
    "chat_id",
    metavar="ID",
    shell_complete=offers.chats,
    help="Continue this chat (edgecloud history list).",
)
@click.option("--mode", type=click.Choice(get_args(Mode)), default="auto", help="What the router aims at.")
@click.option("--private", is_flag=True, help="Keep the chat on this machine.")
@click.option("--offline", is_flag=True, help="Connect to nothing but this machine.")
@click.option("--theme", default="", metavar="NAME", help="dark, light, ansi, or a theme of Textual's.")
@click.option("--inline", is_flag=True, help="A small chat in place, below the last command.")
@click.option("--plain", is_flag=True, help="Line by line, without a screen: for screen readers.")
@click.option("--web", is_flag=True, help="In a browser on this machine; prints an address that opens once.")
@click.option("--port", type=Whole(0, 65535), default=0, help="For --web; 0 takes a free one.")
@click.pass_obj
def chat(
    state: State,
    *,
    prompt: tuple[str, ...],
    model: str,
    system: str,
    continues: bool,
    chat_id: str | None,
    mode: Mode,
    private: bool,
    offline: bool,
    theme: str,
    inline: bool,
    plain: bool,
    web: bool,
    port: int,
) -> None:
    """Chat in the terminal. PROMPT is what stands in the prompt to begin with."""
    from ..tui.state.preferences import Preferences

    if continues and chat_id:
        raise BadRequest("Give --continue or --chat, not both.")
    if inline + plain + web > 1:
        raise BadRequest("Give one of --inline, --plain and --web.")
    if port and not web:
        raise BadRequest("--port is for --web, which serves the chat to a browser.")
    state.offline |= offline
    preferences = Preferences(system=system, model=model, mode=mode, private=private)
    which = "last" if continues else chat_id
    text = " ".join(prompt)
    if web:
        code = _web(state, preferences, which, text, theme, port)
    elif plain:
        code = _plain(state, preferences, which, text)
    else:
        code = _screen(state, preferences, which, text, theme, inline=inline)
    raise click.exceptions.Exit(code)


def open_chat(state: State) -> int:
    """The chat as `edgecloud` alone opens it; returns the exit code."""
    from ..tui.state.preferences import Preferences

    return _screen(state, Preferences(), None, "", "", inline=False)


def _screen(
    state: State, preferences: Preferences, chat: str | None, prompt: str, theme: str, *, inline: bool
) -> int:
    from ..tui.terminal import in_browser, is_there

    if not is_there() and not in_browser():
        raise BadRequest("The chat needs a terminal: use `edgecloud ask` in scripts, or --plain.")
    if os.environ.get("TERM") == "dumb":
        raise BadRequest(
            "This terminal can't draw a screen (TERM=dumb): `edgecloud chat --plain` goes line by line."
        )
    from ..tui.run import Options, run

    return run(state.settings(), state.open_gateway, Options(preferences, chat, prompt, theme, inline))


def _plain(state: State, preferences: Preferences, chat: str | None, prompt: str) -> int:
    from ..tui.plain import run_plain

    is_terminal = sys.stdout.isatty()

    def say(text: str) -> None:
        write(sys.stdout, neutral(text, is_terminal=is_terminal))

    return run_plain(state.settings(), state.open_gateway, preferences, chat, say, prompt=prompt)


def _web(state: State, preferences: Preferences, chat: str | None, prompt: str, theme: str, port: int) -> int:
    from ..tui.web.run import run_web
    from ..tui.web.server import chat_command

    command = chat_command(tab_arguments(preferences, chat, prompt, theme, offline=state.offline))

    def announce(address: str) -> None:
        click.echo(f"Open {address} in a browser on this machine, once. Ctrl-C ends it.", err=True)

    return run_web(state.settings(), command, port, announce, model=preferences.model, chat=chat)


def tab_arguments(
    preferences: Preferences, chat: str | None, prompt: str, theme: str, *, offline: bool
) -> list[str]:
    """`edgecloud`'s arguments for a tab in the browser: what was said of this chat holds for each."""
    arguments = ["--offline"] * offline + ["chat", "--model", preferences.model]
    arguments += ["--system", preferences.system, "--mode", preferences.mode, "--theme", theme]
    arguments += ["--private"] * preferences.private
    if chat is not None:
        arguments += ["--continue"] if chat == "last" else ["--chat", chat]
    return [*arguments, "--", prompt] if prompt else arguments
