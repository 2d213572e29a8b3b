"""Which files a path rule means, by glob: as attached, and as mentioned in a text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

_HOMES = ("~", "/home/[^/]+", "/Users/[^/]+", "/(?:root)", "[A-Za-z]:/Users/[^/]+")
_PARTS = {"**/": r"(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
# What may be a path in running text: a word with a slash or a dot in it.
_MENTION = re.compile(r"[^\s\"'`<>|()\[\]{},;]{1,400}")


def is_meant(path: str, globs: Iterable[str]) -> bool:
    """Whether a glob matches the path, upper or lower case, slashes either way.

    `*` is anything but a slash, `**` anything; `~` is anybody's home, and ours wherever that is. A glob
    that begins with neither `~/` nor a slash is meant in any folder, one that ends in a slash means all
    that is below.
    """
    plain = path.replace("\\", "/")
    homes = _with_links(os.path.expanduser("~"))
    return any(_compiled(glob, homes).fullmatch(plain) is not None for glob in globs)


def mentions(text: str) -> Iterator[str]:
    """The words of a text that look like paths or file names."""
    for match in _MENTION.finditer(text):
        word = match[0].rstrip(".:!?")
        if "/" in word or "\\" in word or "." in word:
            yield word


@lru_cache(maxsize=4)
def _with_links(home: str) -> tuple[str, ...]:
    """Our home as it is named, and where links lead from there: it may be /var/home/me, or /data/me."""
    names = dict.fromkeys((home, os.path.realpath(home)))
    return tuple(name.replace("\\", "/").rstrip("/") for name in names)


@lru_cache(maxsize=256)
def _compiled(glob: str, homes: tuple[str, ...]) -> re.Pattern[str]:
    glob = glob.replace("\\", "/")
    if glob.endswith("/"):
        glob += "**"
    start = ""
    if glob.startswith("~/"):
        start, glob = f"(?:{'|'.join((*_HOMES, *map(re.escape, homes)))})", glob[1:]
    elif not glob.startswith("/"):
        start = "(?:.*/)?"
    body = "".join(_PARTS.get(token) or re.escape(token) for token in _TOKEN.findall(glob))
    return re.compile(start + body, re.IGNORECASE | re.DOTALL)
