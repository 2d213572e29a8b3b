"""What can be wrong with a setting beyond its type: the model, the file, the address that it names.

`doctor` runs the checks, and `config set` the one of its key. Each returns what was found, in words (none
where there is nothing to look at), or raises: `NotFound` for what isn't there yet, any other `EdgeCloudError`
for what is there and wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgecloud.errors import ConfigError, EdgeCloudError, ModelLoadError, NoPermittedRoute, NotFound
from edgecloud.units import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgecloud.settings import Settings

_WITHOUT_EMBEDDER = (
    "Until there is one, only the very same question is answered from memory, and `auto` tells engines "
    "apart by their sizes."
)


def model(settings: Settings) -> str:
    """The model that `auto` means."""
    from edgecloud.models import resolve

    pool = next((entry for entry in settings.pool if entry.name == settings.meant(settings.model)), None)
    if pool is not None:
        if settings.offline and not pool.local:
            raise NoPermittedRoute(
                f"{pool.name} is not on this machine and offline mode is on: set `local = true` in its entry "
                "if it computes here."
            )
        return f"{pool.name}: {pool.model} at {pool.url}"
    file = resolve(settings.model, settings, kind="chat")
    if file.kind != "chat":
        raise ConfigError(
            f"{settings.model} is an embedding model and can't chat: "
            f"`edgecloud config set embedder {settings.model}` makes it the embedder."
        )
    variant = f", {file.variant}" if file.variant else ""
    return f"{file.name}{variant}, {size(file.size)}, {file.path}"


def embedder(settings: Settings) -> str:
    """The model that turns text into vectors."""
    from edgecloud.models import resolve

    try:
        file = resolve(settings.embedder, settings, kind="embedding")
    except NotFound as error:
        raise NotFound(f"{error.message} {_WITHOUT_EMBEDDER}") from None
    if file.kind != "embedding":
        raise ConfigError(
            f"{settings.embedder} is a chat model and gives no embeddings: set embedder to minilm, "
            "or to a GGUF embedding model."
        )
    return f"{file.name}, {size(file.size)}, {file.path}"


def chat_template(settings: Settings) -> str:
    """The file that replaces the model's own template."""
    from edgecloud.folders import expanded
    from edgecloud.templates import ChatTemplate

    name = settings.local.chat_template
    if not name:
        return "the model's own"
    try:
        source = expanded(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"There is no chat template {name}: no model can chat until there is.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"The chat template {name} can't be read: {reason}.") from error
    try:
        ChatTemplate(source)
    except ModelLoadError as error:
        raise ConfigError(
            error.message.replace("The model's chat template", f"The template {name}")
        ) from error
    if "messages" not in source:
        raise ConfigError(
            f"The template {name} reads no `messages`: what is asked would not reach the model."
        )
    return name


def address(settings: Settings) -> str:
    """Whether `serve` could listen where it is told to; the port may be its own, so any is tried."""
    from edgecloud.http.server import listen

    for listener in listen(settings.server.host, 0):
        listener.close()
    return f"{settings.server.host}, port {settings.server.port}"


def theme(settings: Settings) -> str:
    """The colours of the chat."""
    from ..tui.themes import theme_called

    theme_called(settings.chat.theme)
    return settings.chat.theme


def keys(settings: Settings) -> str:
    """The keys of the chat that were changed."""
    from ..tui.keys import can_be_pressed
    from ..tui.state.keys import KEYS

    chosen = settings.chat.keys
    if unknown := sorted(set(chosen) - set(KEYS)):
        raise ConfigError(
            f"chat.keys names {', '.join(unknown)}, which there is not: docs/chat.md has the ids."
        )
    for id, named in chosen.items():
        for key in filter(None, map(str.strip, named.split(","))):
            if not can_be_pressed(key):
                raise ConfigError(
                    f"{id} has the key {key!r}, which there is not: write it like ctrl+g, alt+enter or f5."
                )
    return f"{len(chosen)} changed" if chosen else ""


def aliases(settings: Settings) -> str:
    """What each alias leads to."""
    from edgecloud.models import resolve

    pools = {entry.name for entry in settings.pool}
    for alias, name in settings.aliases.items():
        try:
            if settings.meant(name) not in pools:
                resolve(name, settings)
        except NotFound as error:
            raise NotFound(f"The alias {alias} leads nowhere: {error.message}") from None
    return ", ".join(f"{alias} is {name}" for alias, name in settings.aliases.items())


CHECKS: dict[str, Callable[[Settings], str]] = {
    "model": model,
    "aliases": aliases,
    "embedder": embedder,
    "local.chat_template": chat_template,
    "server.host": address,
    "chat.theme": theme,
    "chat.keys": keys,
}
"""By the setting that each is about."""


def check(key: str, settings: Settings, warn: Callable[[str], None]) -> None:
    """Refuse what is wrong with one setting (`ConfigError`); warn of what it names and isn't there yet."""
    about = "aliases" if key.startswith("aliases.") else key
    if about not in CHECKS:
        return
    try:
        CHECKS[about](settings)
    except NotFound as error:
        warn(error.message)
    except EdgeCloudError as error:
        raise ConfigError(error.message) from error
