"""Computed prefixes in `edgecloud cache`: what local models keep on disk for chats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from edgecloud.errors import NotFound
from edgecloud.folders import data_dir
from edgecloud.settings import Settings
from edgecloud.units import count, size

from .shell import local_time

if TYPE_CHECKING:
    from ...cache.prefix import PrefixStore, Removal
    from ...cache.prefix_rows import PrefixEntry, PrefixStats

ID = "pre-"
"""What their ids begin with."""


def list_prefixes(settings: Settings, limit: int) -> list[PrefixEntry]:
    """Saved prefixes, the last used first."""
    with _store(settings, for_reading=True) as store:
        return store.entries(limit) if store is not None else []


def find_prefix(settings: Settings, name: str) -> PrefixEntry:
    """The prefix that an id or the beginning of one names. Raises `NotFound`."""
    with _store(settings, for_reading=True) as store:
        found = store.resolve(name) if store is not None else []
    if len(found) == 1 or (found and found[0].id == name):
        return found[0]
    if found:
        raise NotFound(f"Several computed prefixes begin with {name[:80]!r}: give more of the id.")
    raise NotFound(
        f"There is no computed prefix {name[:80]!r}: `edgecloud cache list` shows them; "
        "four digits are enough."
    )


def forget_prefix(settings: Settings, state_id: str) -> bool:
    """Delete one; False while another process keeps old pages readable."""
    with _store(settings) as store:
        return store is None or store.forget(state_id).purged


def clear_prefixes(settings: Settings) -> Removal | None:
    """Delete all of them; None where there are none."""
    with _store(settings) as store:
        return store.clear() if store is not None else None


def prefix_stats(settings: Settings) -> PrefixStats | None:
    """The saved prefixes in numbers; None where nothing was ever saved."""
    with _store(settings, for_reading=True) as store:
        return store.stats() if store is not None else None


def line(entry: PrefixEntry) -> tuple[str, ...]:
    """One prefix in the list."""
    what = f"{entry.num_tokens:,} tokens, {size(entry.bytes)}, of {', '.join(entry.chats)}"
    return (entry.id, local_time(entry.created), count(entry.hits, "hit"), entry.model, what)


def details(entry: PrefixEntry) -> list[tuple[str, ...]]:
    """All that is known of one."""
    return [
        ("id", entry.id),
        ("computed by", entry.model),
        ("holds", f"{entry.num_tokens:,} tokens, {size(entry.bytes)}{', encrypted' * entry.encrypted}"),
        ("kept since", local_time(entry.created)),
        ("until", f"{local_time(entry.expires)}, later if it is used"),
        ("used again", f"{count(entry.hits, 'time')}, last {local_time(entry.used)}"),
        ("belongs to", ", ".join(entry.chats)),
    ]


def stat_rows(stats: PrefixStats) -> list[tuple[str, ...]]:
    """The numbers for a person."""
    return [
        ("computed prefixes", f"{stats.states}, {size(stats.bytes)} of at most {size(stats.limit_bytes)}"),
        ("not computed again", f"{stats.spared_tokens:,} tokens at most, in {stats.hits} requests"),
    ]


@contextmanager
def _store(settings: Settings, *, for_reading: bool = False) -> Iterator[PrefixStore | None]:
    """The store, None where no file is: looking makes none."""
    from ..prefixes import open_prefixes

    if not (data_dir() / "prefixes.db").exists():
        yield None
        return
    with closing(open_prefixes(settings, for_reading=for_reading)) as store:
        yield store
