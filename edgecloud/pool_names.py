"""Which names a server of the pool may have, and an alias: what is asked for by it must be nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from edgecloud.errors import ConfigError

STARTERS = ("smollm2", "minilm")
RESERVED = ("auto", "local", "pool", "nobody", "none")
"""What names every engine, the modes that name a side, and what stands where no engine's name does."""


def objection(name: str, aliases: Collection[str], extra_models: Collection[str]) -> str | None:
    """Why a server may not be called this (`must …`, `is …`), None if it may. That servers must differ in
    their names is not looked at.
    """
    known = name.casefold()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        return "must be letters, digits, dots, - and _, and begin with a letter or digit"
    if known in RESERVED:
        return "is a word with a meaning of its own"
    if known in STARTERS:
        return "is a model of this machine"
    if known in map(str.casefold, aliases):
        return "is an alias (`aliases`)"
    if known in map(str.casefold, extra_models):
        return "is a model that `extra_models` names"
    return None


def check_aliases(aliases: Mapping[str, str], fix: Callable[[str], str]) -> None:
    """Raises `ConfigError` for an alias whose name means something else, or that leads back to itself; `fix`
    says of a name where it is to be changed.
    """
    for name in aliases:
        known, seen = name.casefold(), [name]
        while (following := aliases.get(seen[-1])) is not None and following not in seen:
            seen.append(following)
        why = None
        if known in RESERVED:
            why = "is a word with a meaning of its own"
        elif known in STARTERS:
            why = "is a model of this machine"
        elif following is not None:
            why = f"leads in a circle ({' → '.join([*seen, following])})"
        if why is not None:
            raise ConfigError(f"The alias {name[:80]!r} {why}{fix(name)}.")


def check_pool_names(
    names: Sequence[str],
    aliases: Collection[str],
    extra_models: Collection[str],
    fix: Callable[[int], str],
) -> None:
    """Raises `ConfigError` for a name that can't be one, or that two servers have; `fix` says for the n-th
    server where its name is to be changed.
    """
    seen: set[str] = set()
    for number, name in enumerate(names):
        why = "is there twice" if name.casefold() in seen else objection(name, aliases, extra_models)
        if why is not None:
            raise ConfigError(f"The name {name[:80]!r} of a pool {why}{fix(number)}.")
        seen.add(name.casefold())
