"""All settings of a run: flags over `EDGECLOUD_*` environment over `config.toml` over defaults.

An unknown key or a wrong type is a `ConfigError` that names the key, where it came from and the fix. A
variable that resembles no setting is left alone, being some other program's as likely as not, and told of by
`stray_variables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, SecretStr, ValidationError

from edgecloud.pool_names import check_aliases, check_pool_names
from edgecloud.settings import Settings

from .assignments import Assignment, place_of
from .complaints import explain, remedy, wrong
from .keys import leaves_of
from .sources import assignments_of

MASK = "********"


@dataclass(frozen=True, slots=True)
class Origin:
    """One setting as `config show` prints it: dotted key, plain value (secrets masked), source."""

    key: str
    value: Any
    source: Literal["default", "file", "environment", "flag"]
    where: str
    description: str
    given: Assignment | None = None

    def where_in(self, index: int, field: str) -> str:
        """Where a field of an entry of a list came from; "default" where it was not given."""
        given = self.given
        entry = given.value[index] if given is not None else {}
        if given is None or field not in entry:
            return "default"
        return given.where_is((*given.key, str(index), field))


def load(overrides: Mapping[str, Any] | None = None, *, may_be_new: bool = False) -> Settings:
    """The settings of this run. `overrides` are flags by dotted key; a None among them was not given.

    Raises `ConfigError`, also where `EDGECLOUD_CONFIG` names no file, unless that `may_be_new`.
    """
    return build(assignments_of(overrides or {}, may_be_new=may_be_new))


def origins(overrides: Mapping[str, Any] | None = None, *, may_be_new: bool = False) -> tuple[Origin, ...]:
    """Every setting with where its value came from. Raises as `load` does."""
    assignments = assignments_of(overrides or {}, may_be_new=may_be_new)
    settings = build(assignments)
    given = {assignment.key: assignment for assignment in assignments}
    rows = []
    for key, field in leaves_of(Settings):
        value: Any = settings
        for part in key:
            value = getattr(value, part)
        # Entries of a table like `aliases` may come from several places; the last one speaks for it.
        sources = [given[name] for name in given if name[: len(key)] == key]
        source = sources[-1] if sources else None
        rows.append(
            Origin(
                ".".join(key),
                plain(value),
                source.source if source else "default",
                source.where if source else "",
                field.description or "",
                source,
            )
        )
    return tuple(rows)


def plain(value: Any) -> Any:
    """A setting's value as JSON has it, secrets masked."""
    match value:
        case SecretStr():
            return MASK
        case BaseModel():
            return {name: plain(getattr(value, name)) for name in type(value).model_fields}
        case tuple():
            return [plain(item) for item in value]
        case _:
            return value


def build(assignments: Sequence[Assignment]) -> Settings:
    """Settings out of what was given, the last the strongest. Raises `ConfigError`."""
    tree: dict[str, Any] = {}
    for assignment in assignments:
        branch = tree
        for part in assignment.key[:-1]:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise wrong(assignment.key[:-1], "be a table", branch, assignments)
        branch[assignment.key[-1]] = _tuples(assignment.value)
    try:
        # Strict: a port written as "8484" or true is a mistake in a file that has types.
        settings = Settings.model_validate(tree, strict=True)
    except ValidationError as error:
        raise explain(error, assignments) from error
    check_aliases(settings.aliases, lambda name: remedy(place_of(("aliases", name), assignments)))
    check_pool_names(
        [entry.name for entry in settings.pool],
        settings.aliases,
        settings.extra_models,
        lambda number: remedy(place_of(("pool", str(number), "name"), assignments)),
    )
    return settings


def _tuples(value: Any) -> Any:
    match value:
        case list():
            return tuple(_tuples(item) for item in value)
        case dict():
            return {key: _tuples(item) for key, item in value.items()}
        case _:
            return value
