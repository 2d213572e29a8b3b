"""`edgecloud ask`: one question, one answer on stdout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args

import click

from edgecloud.errors import BadRequest, EdgeCloudError, NotFound
from edgecloud.types import ChatRequest, Constraint, Message, Mode, Sampling

from . import offers
from .shell import Decimal, State, Whole

if TYPE_CHECKING:
    from edgecloud.settings import Settings

    from .printers import Printer

EPILOG = """\b
Standard input: what is piped in is added after the prompt. With a prompt given, a pipe that stays silent for
a second is left alone; - waits for it, and stands for it where it is written.

\b
Exit codes:
  0  answered            3  no permitted route (offline, privacy)   130  interrupted, the partial is kept
  1  failed              4  out of budget                           141  the reader of stdout went away
  2  wrong usage         5  out of time
"""


class Number(Decimal):
    """A finite number in a range: `nan` is in every range, as comparisons go."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class Seed(click.types.IntParamType):
    """A number of 64 bits. Of an `IntRange` click prints the bounds, with all their digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = int(super().convert(value, param, ctx))
        if not -(2**63) <= number < 2**63:
            self.fail(f"{value} does not fit in 64 bits.", param, ctx)
        return number


@click.command(epilog=EPILOG)
@click.argument("prompt", nargs=-1)
@click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    shell_complete=offers.files,
    help="Add a text file to the prompt (repeatable).",
)
@click.option(
    "-m",
    "--model",
    default="auto",
    shell_complete=offers.models,
    metavar="MODEL",
    help="Who answers: a name, a .gguf file, hf:owner/repo:QUANT.",
)
@click.option("-s", "--system", metavar="TEXT", help="The system prompt.")
@click.option(
    "-c",
    "--continue",
    "continues",
    is_flag=True,
    help="Continue the last chat; without a prompt, ask again what got no answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; with --stream one per event.")
@click.option(
    "--stream/--no-stream", default=None, help="Print as it comes (the default for text), or at the end."
)
@click.option(
    "--schema", metavar="FILE", shell_complete=offers.files, help="A JSON schema that the answer must match."
)
@click.option("--temperature", type=Number(0, 2), help="0 takes the likeliest token every time.")
@click.option("--top-p", type=Number(0, 1, min_open=True))
@click.option("--top-k", type=Whole(0), help="0: off.")
@click.option("--min-p", type=Number(0, 1))
@click.option("--max-tokens", type=Whole(1), metavar="N", help="The longest answer.")
@click.option("--seed", type=Seed(), metavar="N", help="Draw alike: the same answer, on an idle machine.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text (repeatable).")
@click.option("-n", "num_choices", type=Whole(1, 128), default=1, metavar="N", help="How many answers.")
@click.option("--timeout", type=Number(0, min_open=True), metavar="SECONDS", help="Give up after this long.")
@click.option("-q", "--quiet", is_flag=True, help="No notes on stderr, errors only.")
@click.option("--no-history", is_flag=True, help="Do not keep prompt and answer.")
@click.option("--offline", is_flag=True, help="Connect to nothing but this machine.")
@click.option(
    "--mode", type=click.Choice(get_args(Mode)), default="auto", help="What matters most this time."
)
@click.option("--private", is_flag=True, help="This chat stays on this machine.")
@click.option("--fresh", is_flag=True, help="No remembered answer.")
@click.option("--dry-run", is_flag=True, help="Say who would be asked and why; ask nobody.")
@click.pass_obj
def ask(
    state: State,
    *,
    prompt: tuple[str, ...],
    files: tuple[str, ...],
    model: str,
    system: str | None,
    continues: bool,
    as_json: bool,
    stream: bool | None,
    schema: str | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    max_tokens: int | None,
    seed: int | None,
    stop: tuple[str, ...],
    num_choices: int,
    timeout: float | None,
    quiet: bool,
    no_history: bool,
    offline: bool,
    mode: Mode,
    private: bool,
    fresh: bool,
    dry_run: bool,
) -> None:
    """Ask one question. The answer is on stdout and nothing else is.

    \b
    edgecloud ask why is the sky blue
    git diff | edgecloud ask "write a commit message"
    edgecloud ask -f notes.txt "what is missing?" --json
    """
    from ..text_files import paths_of
    from .answer import answer
    from .ending import Interrupted, exit_code
    from .prompt import gather_prompt

    printer = _printer(as_json=as_json, stream=stream, quiet=quiet)
    try:
        if "" in stop:
            raise BadRequest("--stop must not be empty.")
        state.offline |= offline
        state.quiet |= quiet
        settings = state.settings()
        text = gather_prompt(prompt, files, quiet=quiet, optional=continues)
        messages, chat_id, parent_id = [Message("user", text)], None, None
        if continues:
            messages, chat_id, parent_id, is_pinned = _continued(state, settings, text, quiet=quiet)
            private |= is_pinned
        if system is not None:
            messages = [Message("system", system), *(m for m in messages if m.role != "system")]
        request = ChatRequest(
            messages=tuple(messages),
            model=model,
            sampling=Sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed),
            max_tokens=max_tokens,
            stop=stop,
            n=num_choices,
            constraint=_schema(schema) if schema else None,
            deadline_s=timeout,
            offline=settings.offline,
            mode=mode,
            private=private,
            fresh=fresh,
            journal=not no_history,
            files=tuple(path for name in files if name != "-" for path in paths_of(name)),
            parent_id=parent_id,
            chat_id=chat_id,
            door="ask",
        )
    except EdgeCloudError as error:
        printer.end(error)
        raise
    if dry_run:
        from .why import print_plan

        print_plan(state, settings, request, as_json=as_json)
        return
    try:
        answer(state, settings, request, printer, quiet=quiet)
    except Interrupted as interrupted:
        raise click.exceptions.Exit(exit_code(interrupted)) from None


def _printer(*, as_json: bool, stream: bool | None, quiet: bool) -> Printer:
    from .printers import JsonLinesPrinter, JsonPrinter, TextPrinter

    if as_json:
        return JsonLinesPrinter() if stream else JsonPrinter()
    return TextPrinter(stream=stream is not False, quiet=quiet)


def _continued(
    state: State, settings: Settings, text: str, *, quiet: bool
) -> tuple[list[Message], str, str | None, bool]:
    """The last chat with one more question, its id, and its first message's: whether that is still there is
    looked at when the question is written. Without one, its last question if that is open. Last, whether the
    chat is pinned to this machine.
    """
    from .shell import note

    chat_id, first_id, earlier, is_pinned = _last_chat(state, settings)
    is_open = bool(earlier) and earlier[-1].role == "user"
    if text and is_open:
        note("edgecloud: the question before this one has no answer; both are asked.", quiet=quiet)
    if not text and not is_open:
        raise BadRequest("There is no prompt, and the last question was answered: say what comes next.")
    return [*earlier, *([Message("user", text)] if text else ())], chat_id, first_id, is_pinned


def _last_chat(state: State, settings: Settings) -> tuple[str, str | None, tuple[Message, ...], bool]:
    if not settings.history.enabled:
        raise BadRequest("There is no chat to continue: history is off (`history.enabled`).")
    history = state.history()
    try:
        chat_id = history.last_chat()
        if chat_id is None:
            raise NotFound("There is no chat to continue yet.")
        chat = history.show(chat_id)
        return chat_id, next(iter(chat.path), None), history.messages(chat_id), chat.private
    finally:
        history.close()


def _schema(name: str) -> Constraint:
    import json

    from ..text_files import read_text

    text = read_text(name)
    try:
        schema: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name} is not JSON: {error}.") from error
    if not isinstance(schema, dict):
        raise BadRequest(f"{name} is not a JSON schema: it must be an object.")
    return Constraint("schema", text, param="schema")
