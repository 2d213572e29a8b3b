"""The `edgecloud` command: its sub-commands, loaded when they are asked for, and how every one of them ends.

Whatever goes wrong is one line on stderr and an exit code: 1 failed, 2 wrong usage (what was typed is wrong,
or names what is not there), 3 no permitted route, 4 out of budget, 5 out of time, 130 interrupted, 141 the
reader of our output went away.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from importlib import import_module
from typing import NamedTuple

import click

from edgecloud.errors import BadRequest, EdgeCloudError

from .shell import ReaderGone, State, complain, fill_closed_streams


class Command(NamedTuple):
    """Where a sub-command is, by a function of its own name, and its line in the help."""

    module: str
    help: str


COMMANDS = {
    "ask": Command("ask", "Ask one question; the answer is on stdout."),
    "chat": Command("chat", "Chat in the terminal, as `edgecloud` alone does."),
    "cache": Command("cache", "List, show and forget kept answers."),
    "completion": Command("completion", "Print the script that completes edgecloud in a shell."),
    "config": Command("config", "Show and change settings."),
    "doctor": Command("doctor", "Say what works on this machine."),
    "history": Command("history", "List, show, search, export and remove chats."),
    "models": Command("models", "List, get, choose and tune models."),
    "pool": Command("pool", "Serve a model to other machines; manage the servers that this one uses."),
    "route": Command("route", "Explain where requests go, and list where they went."),
    "serve": Command("serve", "Serve the OpenAI and Anthropic APIs on this machine."),
    "stats": Command("stats", "Requests, tokens, money and speed, by engine and day."),
    "why": Command("why", "Say why a request went where it went."),
}


class LazyGroup(click.Group):
    """A group that imports a command only to run it, so that none pays for another."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(import_module(f"..{COMMANDS[name].module}", __name__), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        # click looks among commands that are registered, and ours are not before they are asked for.
        from difflib import get_close_matches

        close = get_close_matches(name, COMMANDS, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        raise click.UsageError(f"No such command '{name[:80]}'.{meant}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"edgecloud {version('edgecloud')}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it."
)
@click.option("--offline", is_flag=True, help="Connect to nothing but this machine.")
@click.option("--debug", is_flag=True, help="Show the traceback of a bug instead of logging it.")
@click.pass_context
def edgecloud(ctx: click.Context, offline: bool, debug: bool) -> None:
    """Chat from the shell and over the OpenAI API with a model on this machine."""
    state = ctx.ensure_object(State)
    state.offline |= offline
    state.debug |= debug
    if ctx.invoked_subcommand is None:
        if sys.stdin.isatty() and (sys.stdout.isatty() or sys.stderr.isatty()):
            from .chat import open_chat

            ctx.exit(open_chat(state))
        raise BadRequest(
            "The chat needs a terminal: use `edgecloud ask` in scripts; `edgecloud --help` tells the rest."
        )


def run(arguments: list[str] | None = None, state: State | None = None) -> None:
    """Run the command line and exit the process."""
    state = state or State()
    fill_closed_streams()
    try:
        code = edgecloud.main(arguments, prog_name="edgecloud", standalone_mode=False, obj=state) or 0
        sys.stdout.flush()
    except EdgeCloudError as error:
        code = complain(error.message, error.exit_code)
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        if isinstance(error, click.UsageError) and error.ctx:
            message += f" (see '{error.ctx.command_path} --help')"
        code = complain(message + ("" if message.endswith("?") else "."), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except ReaderGone:
        code = 141
    except OSError as error:
        if error.errno == errno.ENOSPC:
            code = complain("No space is left where the output goes.", 1)
        elif error.errno == errno.EBADF and not _can_write(1):
            code = complain("The output goes nowhere: stdout is closed.", 1)
        else:
            code = _report_bug(error)
    except Exception as error:
        if state.debug:
            raise
        code = _report_bug(error)
    _leave(int(code))


def _can_write(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY


def _report_bug(error: Exception) -> int:
    from ..logs import log_bug

    place = log_bug(error)
    return complain(
        f"Something went wrong inside edgecloud ({type(error).__name__}); "
        + (f"the details are in {place}." if place else "run it again with --debug to see the details."),
        1,
    )


def _leave(code: int) -> None:
    """Exit without Python's complaint when stdout is closed already."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = code or 141
    sys.exit(code)
