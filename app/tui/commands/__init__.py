"""What the commands do: coroutines that take the chat's screen and what was typed after the name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from . import chats, judging, looks, pulling, routing, turns, views, words

Handler = Callable[..., Coroutine[None, None, Any]]

HANDLERS: Mapping[str, Handler] = {
    "new": chats.new,
    "chats": chats.toggle,
    "all": chats.all_,
    "search": chats.search,
    "rename": chats.rename,
    "delete": chats.delete,
    "export": chats.export,
    "import": chats.import_,
    "model": routing.model,
    "pull": pulling.pull,
    "route": routing.route,
    "private": routing.private,
    "preview": routing.preview,
    "why": routing.why,
    "forget": routing.forget,
    "good": judging.good,
    "bad": judging.bad,
    "system": words.system,
    "set": words.set_,
    "attach": words.attach,
    "editor": words.editor,
    "stop": turns.stop,
    "regenerate": turns.regenerate,
    "continue": turns.continue_,
    "edit": turns.edit,
    "fork": turns.fork,
    "shorten": turns.shorten,
    "next": turns.next_,
    "previous": turns.previous,
    "copy": turns.copy,
    "code": turns.code,
    "receipt": looks.receipt,
    "reasoning": looks.reasoning,
    "compare": views.compare,
    "dashboard": views.dashboard,
    "theme": looks.theme,
    "help": looks.help_,
    "suspend": looks.suspend,
    "quit": looks.quit_,
}
