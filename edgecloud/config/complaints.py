"""What is wrong with a setting, in one sentence that names it, its place and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pydantic import ValidationError

from edgecloud.errors import ConfigError

from .assignments import TYPED, Assignment, Key, place_of
from .keys import close_to


def explain(error: ValidationError, assignments: Sequence[Assignment]) -> ConfigError:
    """The first thing that the models of the settings object to."""
    first = error.errors(include_url=False)[0]
    key = tuple(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown(key, place_of(key, assignments))
    if first["type"] == "missing":
        return ConfigError(f"{'.'.join(key)} is missing: give it in {place_of(key, assignments)}.")
    return wrong(key, requirement(first["msg"]), first["input"], assignments)


def unknown(key: Key, where: str, *, spell: Callable[[str], str] = repr) -> ConfigError:
    """No such setting, and the one that was meant as `spell` writes it."""
    close = close_to(key)
    hint = f"did you mean {spell(close)}?" if close else "`edgecloud config show` lists them all."
    return ConfigError(f"There is no setting {'.'.join(key)[:80]!r} (in {where}); {hint}")


def wrong(key: Key, must: str, value: object, assignments: Sequence[Assignment]) -> ConfigError:
    """`KEY must …, not VALUE: change it in PLACE`; a secret's value is left out."""
    shown = f", not {value!r}" if isinstance(value, str | int | float) and not _is_secret(key, value) else ""
    return ConfigError(f"{'.'.join(key)} must {must}{shown[:100]}{remedy(place_of(key, assignments))}.")


def requirement(message: str) -> str:
    """`be a valid integer`, out of what pydantic says."""
    must = re.sub(r"^(Value error, )?((Input|String) should )?", "", message).partition(", unable")[0]
    # As TOML calls them, not Python.
    return re.sub(r"valid tuple$", "list", re.sub(r"valid dictionary.*", "table", must))


def remedy(where: str) -> str:
    """What was typed a moment ago needs no telling where it is."""
    return "" if where == TYPED else f": change it in {where}"


def _is_secret(key: Key, value: object) -> bool:
    """Whether it is a key, or an address with a password in it."""
    return any(part in ("api_key", "api_keys", "key") for part in key) or (
        isinstance(value, str) and re.search("//.*@", value) is not None
    )
