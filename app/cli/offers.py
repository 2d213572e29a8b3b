"""What a shell offers for a word of the command line: files, models, settings, ids of what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from edgecloud.errors import EdgeCloudError
from edgecloud.folders import data_dir

from .shell import State

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    Offer = Callable[[click.Context], Iterable[tuple[str, str]]]
    Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

MOST = 50
"""Ids that are offered, the latest."""


def files(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """The names of files, as the shell completes them itself."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def _words(offer: Offer) -> Completer:
    """The words of `offer`, each with what it is, that go on from what was begun."""

    @wraps(offer)
    def complete(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        try:
            return [CompletionItem(word, help=told) for word, told in offer(ctx) if word.startswith(begun)]
        except EdgeCloudError:
            return []  # a complaint in the middle of the line that somebody types would only be in the way

    return complete


@_words
def _model_names(ctx: click.Context) -> Iterable[tuple[str, str]]:
    from edgecloud.models import list_models

    settings = State(quiet=True).settings()
    yield from ((model.name, model.kind) for model in list_models(settings))
    yield from settings.aliases.items()
    yield from ((entry.name, entry.model) for entry in settings.pool)


def models(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Models by name, and where none begins so, files."""
    return _model_names(ctx, param, begun) or files(ctx, param, begun)


@_words
def pools(ctx: click.Context) -> Iterable[tuple[str, str]]:
    """The servers that this machine uses."""
    return [(entry.name, f"{entry.model} at {entry.url}") for entry in State(quiet=True).settings().pool]


@_words
def settings_keys(ctx: click.Context) -> Iterable[tuple[str, str]]:
    """Every setting."""
    from edgecloud.config.keys import leaves_of
    from edgecloud.settings import Settings

    return [(".".join(key), field.description or "") for key, field in leaves_of(Settings)]


@_words
def _choices(ctx: click.Context) -> Iterable[tuple[str, str]]:
    from edgecloud.config.keys import field_of

    field = field_of(tuple(ctx.params["key"].split(".")))
    values: tuple[Any, ...] = ()
    if field is not None and get_origin(field.annotation) is Literal:
        values = get_args(field.annotation)
    elif field is not None and field.annotation is bool:
        values = ("true", "false")
    return [(value, "") for value in values]


def settings_values(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """What the setting that was named before may be, where it is a model or one of a few words."""
    is_model = ctx.params["key"] in ("model", "embedder") or ctx.params["key"].startswith("aliases.")
    return (models if is_model else _choices)(ctx, param, begun)


@_words
def chats(ctx: click.Context) -> Iterable[tuple[str, str]]:
    """The ids of the latest chats, with their titles."""
    if not (data_dir() / "edgecloud.db").exists():
        return []
    return [(chat.id, chat.title) for chat in State(quiet=True).history().list(MOST)]


@_words
def requests(ctx: click.Context) -> Iterable[tuple[str, str]]:
    """The ids of the latest requests, with who answered."""
    if not (data_dir() / "edgecloud.db").exists():
        return []
    return [(row["id"], row["engine"]) for row in State(quiet=True).ledger().recent(MOST)]


@_words
def kept(ctx: click.Context) -> Iterable[tuple[str, str]]:
    """The ids of the latest kept answers and of computed prefixes."""
    from contextlib import closing

    from ..databases import open_answers
    from .cache_prefixes import list_prefixes

    settings = State(quiet=True).settings()
    if (data_dir() / "cache.db").exists():
        with closing(open_answers(settings, for_reading=True)) as answers:
            yield from ((entry.id, " ".join(entry.prompt.split())) for entry in answers.entries(MOST))
    yield from ((entry.id, entry.model) for entry in list_prefixes(settings, MOST))
