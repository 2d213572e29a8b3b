"""`edgecloud history`: what was asked and answered, by every door."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, get_args

import click

from edgecloud.errors import BadRequest, NotFound, StorageError
from edgecloud.types import Door
from edgecloud.units import count

from ..text_files import write_private
from . import offers
from .group import ListingGroup
from .shell import State, Whole, local_time, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from ..chats import Chat
    from ..history import History, Removal

T = TypeVar("T")

AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(cls=ListingGroup)
def history() -> None:
    """List, show, search, export and remove chats. A chat is named by its id or the beginning of it."""


@history.command("list")
@click.option(
    "--door",
    "doors",
    type=click.Choice(get_args(Door)),
    multiple=True,
    help="Only what came this way: chat, ask, or http for programs. May be given several times.",
)
@click.option("-n", "--limit", type=Whole(1), default=20, show_default=True, help="How many.")
@AS_JSON
@click.pass_obj
def list_(state: State, doors: tuple[Door, ...], limit: int, as_json: bool) -> None:
    """List chats, the last used first."""
    chats = state.history().list(limit, doors=doors)
    if as_json:
        print_json([dataclasses.asdict(chat) for chat in chats])
        return
    print_table(
        [
            (chat.id, local_time(chat.updated), str(chat.num_messages), chat.door, chat.status, chat.title)
            for chat in chats
        ]
    )


@history.command()
@click.argument("chat", required=False, shell_complete=offers.chats)
@AS_JSON
@click.pass_obj
def show(state: State, chat: str | None, as_json: bool) -> None:
    """Show a chat, or the last one."""
    from ..chat_markdown import as_markdown
    from ..chats import as_json as to_json

    found = _find(state, chat)
    if as_json:
        print_json(to_json(found))
    else:
        print_text(as_markdown(found))


@history.command()
@click.argument("words", nargs=-1, required=True)
@click.option("-n", "--limit", type=Whole(1), default=20, show_default=True, help="How many.")
@AS_JSON
@click.pass_context
def search(ctx: click.Context, words: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Find messages that hold all WORDS. Exit code 1 if there are none."""
    if not any(word.strip() for word in words):
        raise BadRequest("There is nothing to look for: give a word or more.")
    hits = ctx.obj.history().search(" ".join(words), limit)
    if as_json:
        print_json([dataclasses.asdict(hit) for hit in hits])
    else:
        print_table([(hit.chat_id, local_time(hit.updated), hit.role, hit.excerpt) for hit in hits])
    if not hits:
        note("No message holds that.")
        ctx.exit(1)  # as grep


@history.command()
@click.argument("chat", required=False, shell_complete=offers.chats)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    shell_complete=offers.files,
    help="A new file (only you can read it) instead of stdout.",
)
@AS_JSON
@click.pass_obj
def export(state: State, chat: str | None, output: str | None, as_json: bool) -> None:
    """Export a chat with all its branches, or the last one, as Markdown or JSON; the chat reads both back."""
    from ..chat_markdown import as_markdown_file
    from ..chats import as_json as to_json

    found = _find(state, chat)
    if output is not None:
        text = json.dumps(to_json(found), indent=2) + "\n" if as_json else as_markdown_file(found)
        write_private(output, text)
    elif as_json:
        print_json(to_json(found))
    else:
        print_text(as_markdown_file(found))


@history.command()
@click.argument("chats", nargs=-1, shell_complete=offers.chats)
@click.option("--all", "everything", is_flag=True, help="Remove every chat.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@AS_JSON
@click.pass_obj
def rm(state: State, chats: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> None:
    """Remove CHATS for good: from the database, its search index, its free pages and its log."""
    from edgecloud.storage import DiskFull

    if everything == bool(chats):
        raise BadRequest("Name the chats to remove, or give --all.")
    try:
        store = state.history(for_reading=False)
    except DiskFull:
        if not everything:
            raise
        store = _with_room_made(lambda: state.history(for_reading=False))
    if everything:
        if not yes and not sys.stdin.isatty():
            raise BadRequest("Removing every chat needs --yes where nobody can be asked.")
        chats_there = store.list(-1)
        names = [chat.id for chat in chats_there]
        if names and not yes:
            num_messages = sum(chat.num_messages for chat in chats_there)
            held = f"{count(len(names), 'chat')} with {count(num_messages, 'message')}"
            click.confirm(f"Remove every chat: {held}?", abort=True, err=True)
    else:
        names = [store.resolve(chat) for chat in chats]
    try:
        removal = _remove(store, names)
    except DiskFull:
        if not everything:
            raise
        removal = _with_room_made(lambda: _remove(store, names))
    if as_json:
        print_json(dataclasses.asdict(removal))
    else:
        _tell(removal)


def _remove(store: History, names: Sequence[str]) -> Removal:
    from ..forgetting import forget_chats

    # What was derived from them goes first: should that fail, the chats are what it is found by again.
    purged = forget_chats(names)
    removal = store.remove(names)
    return dataclasses.replace(removal, purged=removal.purged and purged)


def _with_room_made(act: Callable[[], T]) -> T:
    """Make the room that deleting takes by what goes with all chats, and can be computed again."""
    from edgecloud.folders import data_dir
    from edgecloud.storage import DiskFull

    from ..forgetting import drop_kept

    drop_kept()
    try:
        return act()
    except DiskFull:
        raise StorageError(
            f"The disk is full, and removing chats takes some room itself: free some elsewhere, or delete "
            f"{data_dir() / 'edgecloud.db'}* yourself, with which what was spent is forgotten too."
        ) from None


def _tell(removal: Removal) -> None:
    print_text(f"Removed {count(removal.num_chats, 'chat')} with {count(removal.num_messages, 'message')}.")
    if not removal.purged:
        # A promise not kept yet is not mere talk: it is said to scripts too.
        print_text(
            "Another program is still reading the database, so parts of the text are still in its files; "
            "they are wiped when edgecloud next starts."
        )


def _find(state: State, name: str | None) -> Chat:
    from ..pins import with_pin

    store = state.history()
    if name is not None:
        return with_pin(store.show(store.resolve(name)))
    last = store.list(1)
    if not last:
        raise NotFound("There are no chats yet.")
    return with_pin(store.show(last[0].id))
