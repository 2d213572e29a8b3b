"""The chat without a screen: lines in, lines out, for screen readers and terminals that can't draw.

Nothing is drawn twice and no escape sequence is written; what is no answer begins with `--`.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from edgecloud.errors import BadRequest, EdgeCloudError
from edgecloud.settings import Settings

from ..chat_files import default_name, export_chat
from ..logs import redirect_native_output
from ..pins import unpinned
from .foresight import Foresight
from .lasting import Lasting
from .naming import check_model
from .ports import Gateway, Store, open_store, which_chat
from .session import Session
from .state import frame
from .state import receipt as words
from .state.attachments import gather
from .state.commands import parse, unescaped
from .state.conversation import Conversation
from .state.preferences import Preferences
from .state.turn import Turn
from .state.waiting import HERE, Waiting, restored

LOOK_S = 0.1
SAY_S = 10.0
"""How often it is said how far a model is that is being loaded: every line is read aloud."""

BLOCK = '"""'
ASKS = "you> "
KNOWN = {
    "new": "start a new chat",
    "chats": "list the last chats",
    "model": "NAME: who answers in this chat",
    "system": "TEXT: the system prompt",
    "set": "NAME VALUE: a parameter",
    "private": "keep this chat on this machine, or no longer",
    "regenerate": "answer again",
    "continue": "go on where the answer was cut",
    "receipt": "where the last answer came from",
    "export": "FILE: write this chat to a new file",
    "help": "this list",
    "quit": "leave, as Ctrl+D does",
}


class PlainChat:
    """One chat held line by line. `read` gives the next line or raises `EOFError`; `say` shows text."""

    def __init__(
        self,
        gateway: Gateway,
        store: Store,
        settings: Settings,
        preferences: Preferences,
        *,
        read: Callable[[str], str],
        say: Callable[[str], None],
    ) -> None:
        self.gateway, self.store, self.settings = gateway, store, settings
        self.read, self.say = read, say
        self.session = self._session(preferences)

    async def run(self, chat_id: str | None = None, prompt: str = "") -> None:
        """Until the end of the input, or /quit. `prompt` is what is asked first."""
        if self.session.preferences.model != "auto":
            await check_model(self.gateway, self.settings, self.session.preferences.model)
        if chat_id is not None:
            chat, receipts, notes = await self.store.chat(chat_id)
            said = self.session.preferences.noted()  # on the command line, for this chat too
            kept, queue = await asyncio.to_thread(restored, notes)
            self.session = self._session(kept, queue)
            self.session.chat_id, self.session.title = chat_id, chat.summary.title
            self.session.conversation = Conversation.of(chat, receipts)
            if said:
                await self.session.set_preferences(Preferences.of({**kept.noted(), **said}))
            self._note(f"going on with “{chat.summary.title}”")
            for each in queue:
                self._note(
                    f"waits since then, and goes with an empty line or before what you ask: {each.typed}"
                )
        who = frame.who(self.settings, self.session.preferences.model)
        self._note(f"{who} answers; /help lists commands, Ctrl+D leaves")
        if prompt:
            self.say(f"{ASKS}{prompt}\n")
        while (typed := prompt or await self._prompt()) is not None:
            prompt = ""
            try:
                command = parse(typed)
                if not typed.strip():
                    self.session.go_on()
                    await self._answers()
                elif command is None:
                    asked = gather(unescaped(typed))
                    if asked.images:
                        foresight = Foresight(self.gateway)
                        foresight.cards = await self.gateway.models()
                        foresight.check(asked, self.session.preferences.model)
                    self.session.send(Waiting(typed, asked, HERE))
                    await self._answers()
                elif command.command.name == "quit":
                    break
                else:
                    await self._command(command.command.name, command.argument)
            except EdgeCloudError as error:
                self._note(error.message)
        await self.session.aclose()

    async def _prompt(self) -> str | None:
        """The next prompt: a line, or several between two lines of three quotes; nothing is what waits."""
        while True:
            first = await self._line(ASKS)
            if first is None or first.strip() != BLOCK:
                if first is None or first.strip() or self.session.queue:
                    return first
                continue
            lines: list[str] = []
            while (line := await self._line("")) is not None and line.strip() != BLOCK:
                lines.append(line)
            return "\n".join(lines)

    async def _line(self, prompt: str) -> str | None:
        try:
            return await asyncio.to_thread(self.read, prompt)
        except EOFError:
            self.say("\n")  # what comes next begins on a line of its own
            return None

    async def _answers(self) -> None:
        """Show the answer, and what else waits with its answers."""
        await self._answer()
        while self.session.queue and (head := self.session.conversation.head) and head.status == "complete":
            self.say(f"{ASKS}{self.session.queue[0].typed}\n")
            self.session.go_on()
            await self._answer()

    async def _answer(self) -> None:
        """Show what comes of the answer as it comes."""
        session, shown, marked, turn = self.session, 0, 0, None
        say_at = session.clock()
        while session.is_running:
            if session.turn is not None:
                turn = session.turn
            if turn is not None:
                shown, marked = self._show(turn, shown, marked)
                if turn.status and session.clock() >= say_at:
                    say_at = session.clock() + SAY_S
                    self._note(turn.status)
            await asyncio.sleep(LOOK_S)
        head = session.conversation.head
        if turn is not None:
            self._show(turn, shown, marked)
        elif head is not None:
            self.say(head.message.content)  # it was over before anybody looked: a kept answer, say
        self.say("\n")
        if head is None:
            return
        if head.status == "failed":
            self._note(head.error or "the answer failed")
        elif head.status == "interrupted":
            self._note("stopped; /continue goes on, /regenerate asks again")
        elif head.receipt is not None:
            self._note(words.line(head.receipt))
        if session.warning:
            self._note(session.warning)
            session.warning = None

    def _show(self, turn: Turn, shown: int, marked: int) -> tuple[int, int]:
        """Say what is new of the text after `shown` characters, and of its seams after `marked`; returns how
        much of both was said then.
        """
        for seam in turn.seams[marked:]:
            self.say(turn.text[shown : seam.position])
            self.say("\n" if seam.position else "")
            self._note(seam.text)
            shown = max(shown, seam.position)
        self.say(turn.text[shown:])
        return len(turn.text), len(turn.seams)

    async def _command(self, name: str, argument: str) -> None:
        if name not in KNOWN:
            raise BadRequest(f"/{name} needs the screen: leave --plain out, or see /help.")
        session, chosen = self.session, self.session.preferences
        head = session.conversation.head
        match name:
            case "new":
                self.session = self._session(replace(chosen, draft=""))
                self._note("a new chat")
            case "chats":
                for chat in (await self.store.chats())[:10]:
                    self._note(f"{chat.id}  {chat.title}")
                self._note("edgecloud chat --plain --chat ID goes on with one")
            case "model" if argument:
                await check_model(self.gateway, self.settings, argument)
                await session.set_preferences(replace(chosen, model=argument))
                self._note(f"{argument} answers in this chat")
            case "model":
                for card in await self.gateway.models():
                    self._note(f"{card.id}  {card.detail}")
            case "system":
                await session.set_preferences(replace(chosen, system=argument))
                self._note("the system prompt is set" if argument else "no system prompt")
            case "set":
                parameter, _, value = argument.partition(" ")
                await session.set_preferences(chosen.with_parameter(parameter, value.strip()))
                self._note(session.preferences.described() or "everything is at the model's own")
            case "private":
                await session.set_preferences(replace(chosen, private=not chosen.private))
                self._note(
                    await asyncio.to_thread(unpinned, session.chat_id)
                    if chosen.private
                    else "private: nothing leaves this machine"
                )
            case "regenerate" | "continue" if head is not None and head.role == "assistant":
                _ = session.regenerate(head) if name == "regenerate" else session.continue_(head)
                await self._answer()
            case "receipt" if head is not None and head.receipt is not None:
                for label, value in words.details(head.receipt):
                    self._note(f"{label}: {value}")
            case "export" if session.chat_id is not None:
                stored = await self.store.show(session.chat_id)
                path = await asyncio.to_thread(export_chat, stored, argument or default_name(stored))
                self._note(f"written to {path}")
            case "help":
                for known, about in KNOWN.items():
                    self._note(f"/{known}  {about}")
                self._note(f"{BLOCK} on a line begins and ends a prompt of several lines; @path adds a file")
            case _:
                raise BadRequest("There is no answer yet.")

    def _session(self, preferences: Preferences, queue: Sequence[Waiting] = ()) -> Session:
        return Session(
            self.gateway,
            self.store,
            preferences=preferences,
            queue=queue,
            one_by_one=True,
            offline=self.settings.offline,
        )

    def _note(self, text: str) -> None:
        self.say(f"-- {text}\n")


def run_plain(
    settings: Settings,
    open_gateway: Callable[[Settings], Awaitable[Gateway]],
    preferences: Preferences,
    chat: str | None,
    say: Callable[[str], None],
    *,
    prompt: str = "",
) -> int:
    """Chat on stdin, showing what comes with `say`, first what `prompt` asks; returns the exit code."""
    redirect_native_output()
    return asyncio.run(_run(settings, open_gateway, preferences, chat, say, prompt))


async def _run(
    settings: Settings,
    open_gateway: Callable[[Settings], Awaitable[Gateway]],
    preferences: Preferences,
    chat: str | None,
    say: Callable[[str], None],
    prompt: str,
) -> int:
    if sys.stdin.isatty():
        import readline  # noqa: F401  (gives `input` its line editing)

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is no UTF-8 ends no chat
    store = open_store(settings)
    gateway = Lasting(await open_gateway(settings), lambda: open_gateway(settings))
    if gateway.aside:
        say(f"-- {gateway.aside}\n")
    held = PlainChat(gateway, store, settings, preferences, read=input, say=say)
    running = asyncio.ensure_future(held.run(await which_chat(store, chat), prompt))
    code = 0

    def interrupted(number: int) -> None:
        nonlocal code
        if number == signal.SIGINT and held.session.is_running:
            held.session.stop()
            return
        code = 128 + number
        running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, interrupted, number)
    try:
        await running
    except asyncio.CancelledError:
        await held.session.aclose()
    finally:
        if lost := await gateway.aclose():
            print(f"edgecloud: warning: {lost}", file=sys.stderr)
        await store.aclose()
    if code:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End at once: a thread still waits for a line, and Python would wait for the thread."""
    sys.stdout.flush()
    os._exit(code)
