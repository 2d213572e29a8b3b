"""Commands on whole chats: new, found, renamed, gone, written to a file and read from one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.widgets import Input

from edgecloud.errors import BadRequest
from edgecloud.units import count

from ...chat_files import default_name, export_chat, import_chat
from ..screens.dialogs import AskText, Confirm
from ..widgets.sidebar import Sidebar

if TYPE_CHECKING:
    from ..chat_view import ChatView


async def new(screen: ChatView, _: str) -> None:
    await screen.switch(screen.desk.new())


async def toggle(screen: ChatView, _: str) -> None:
    sidebar = screen.query_one(Sidebar)
    if sidebar.display and screen.focused is not None and sidebar in screen.focused.ancestors:
        sidebar.display = False
        screen.prompt.focus()
    else:
        sidebar.display = True
        sidebar.begin()


async def all_(screen: ChatView, _: str) -> None:
    screen.all_doors = not screen.all_doors
    screen.query_one(Sidebar).display = True
    await screen.load_chats()


async def search(screen: ChatView, words: str) -> None:
    screen.query_one(Sidebar).display = True
    field = screen.query_one("#search", Input)
    field.focus()
    if words:
        field.value = words
    field.select_all()


async def rename(screen: ChatView, title: str, chat_id: str | None = None) -> None:
    chat_id = chat_id or _current(screen)
    if not title:
        chat = await screen.store.show(chat_id)
        typed = await screen.app.push_screen_wait(AskText("The title of this chat", chat.summary.title))
        if typed is None:
            return
        title = typed
    await screen.store.rename(chat_id, title)
    if chat_id == screen.session.chat_id:
        screen.session.title = " ".join(title.split())
        screen.show_bars()
    await screen.load_chats()


async def delete(screen: ChatView, _: str, chat_id: str | None = None) -> None:
    chat_id = chat_id or _current(screen)
    chat = await screen.store.show(chat_id)
    title, messages = chat.summary.title or "untitled", count(len(chat.messages), "message")
    question = f"Delete “{title}”, {messages}, and all that was derived from it? It can't be brought back."
    if not await screen.app.push_screen_wait(Confirm(question, "delete it")):
        return
    is_shown = await screen.desk.drop(chat_id)
    removal = await screen.store.remove(chat_id)
    if is_shown:
        screen.desk.session = screen.desk.new()
        screen.prompt.clear_all()
        await screen.show()
    await screen.load_chats()
    rest = (
        "" if removal.purged else " Another program reads the database: traces go when edgecloud next starts."
    )
    screen.say(f"Deleted, with {count(removal.num_messages, 'message')}.{rest}")


async def export(screen: ChatView, name: str) -> None:
    chat = await screen.store.show(_current(screen))
    path = await asyncio.to_thread(export_chat, chat, name or default_name(chat))
    screen.say(f"Written to {path}; only you can read it.")


async def import_(screen: ChatView, name: str) -> None:
    if not name:
        raise BadRequest("Say which file: /import chat.json")
    found = await asyncio.to_thread(import_chat, name)
    chat_id = await screen.store.insert(found.title, found.messages, found.head, private=found.private)
    await screen.open(chat_id)


def _current(screen: ChatView) -> str:
    if screen.session.chat_id is None:
        raise BadRequest("Nothing was said in this chat yet.")
    return screen.session.chat_id
