"""`edgecloud config`: where settings are, what they are and why, and changing them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from . import offers
from .group import ListingGroup
from .shell import State, print_json, print_table, print_text, warn

if TYPE_CHECKING:
    from edgecloud.config.loading import Origin


@click.group(cls=ListingGroup, bare="show")
def config() -> None:
    """Show and change settings: flags, over EDGECLOUD_* variables, over the file, over defaults."""


@config.command()
def path() -> None:
    """Print where the settings file is (it need not exist)."""
    from edgecloud.folders import config_path

    print_text(str(config_path()))


@config.command()
@click.argument("keys", nargs=-1, shell_complete=offers.settings_keys)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object by key.")
@click.pass_obj
def show(state: State, keys: tuple[str, ...], as_json: bool) -> None:
    """Show every setting, or those that KEYS name or begin, with where it came from. Secrets are masked."""
    from edgecloud.config.loading import origins
    from edgecloud.errors import NotFound

    def is_meant(name: str) -> bool:
        return not keys or any(name == key or name.startswith(f"{key}.") for key in keys)

    rows = origins({"offline": True if state.offline else None})
    found = [(row, lines) for row in rows if (lines := [line for line in _lines(row) if is_meant(line[0])])]
    if not found:
        raise NotFound(f"There is no setting {keys[0][:80]!r}; `edgecloud config show` lists them all.")
    if as_json:
        print_json(
            {row.key: {"value": row.value, "source": row.source, "where": row.where} for row, _ in found}
        )
    else:
        print_table([line for _, lines in found for line in lines])


@config.command()
@click.argument("key", shell_complete=offers.settings_keys)
@click.pass_context
def get(ctx: click.Context, key: str) -> None:
    """Print the value of KEY and nothing else, nothing if it isn't set; of a section, what `show` prints."""
    from edgecloud.config.loading import origins

    rows = origins({"offline": True if ctx.obj.offline else None})
    values = [row.value for row in rows if row.key == key]
    value = values[0] if values else None
    if not values or (isinstance(value, list) and value and isinstance(value[0], dict)):
        ctx.invoke(show, keys=(key,), as_json=False)
    elif value is None:
        pass  # what isn't set has no value, and scripts test for that
    else:
        print_text(value if isinstance(value, str) else _toml(value))


def _lines(row: Origin) -> list[tuple[str, str, str]]:
    """A setting as lines of key, value and place: one, or one a field for a list of things with names."""
    entries = row.value if isinstance(row.value, list) else []
    if not entries or not all(isinstance(entry, dict) and "name" in entry for entry in entries):
        return [(row.key, _toml(row.value), row.where or row.source)]
    return [
        (f"{row.key}.{entry['name']}.{field}", _toml(value), row.where_in(number, field))
        for number, entry in enumerate(entries)
        for field, value in entry.items()
        if field != "name"
    ]


@config.command("set", context_settings={"ignore_unknown_options": True})  # -1 is a value
@click.argument("key", shell_complete=offers.settings_keys)
@click.argument("value", shell_complete=offers.settings_values)
def set_(key: str, value: str) -> None:
    """Set KEY (like server.port) to VALUE in the settings file, keeping its comments.

    What VALUE names must be what it is named as: an embedder no chat model, a template one that can be read.
    What isn't there yet is set, with a warning.
    """
    from edgecloud.config.editing import set_value

    from .findings import check

    set_value(key, value, check=lambda settings: check(key, settings, warn))


@config.command()
@click.argument("key", shell_complete=offers.settings_keys)
def unset(key: str) -> None:
    """Take KEY out of the settings file, so that its default holds again."""
    from edgecloud.config.editing import unset_value

    unset_value(key)


@config.command()
def edit() -> None:
    """Open the settings file in your editor, and check it when you are done."""
    from edgecloud.config.loading import load, origins
    from edgecloud.folders import config_path
    from edgecloud.toml_file import replace_text

    file = config_path()
    if not file.exists():
        replace_text(file, _template(origins(may_be_new=True)))
    click.edit(filename=str(file))
    load()


def _template(rows: Sequence[Origin]) -> str:
    """A settings file in which every default stands as a comment."""
    lines = ["# Settings of edgecloud. Remove the # of a line to change what it says."]
    section = ""
    for row in sorted(rows, key=lambda row: "." in row.key):
        name = row.key.rpartition(".")[2]
        if row.key != name and row.key != f"{section}.{name}":
            section = row.key.removesuffix(f".{name}")
            lines += ["", f"[{section}]"]
        # A list of tables has no place among the plain keys, and no default to show.
        if name != "pool":
            # TOML has no null: a setting that is nothing by default stays a comment.
            default = f"# {name} is not set" if row.value is None else f"{name} = {_toml(row.value)}"
            lines.append(f"# {default}" + (f"  # {row.description}" if row.description else ""))
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """The value as the settings file would have it, which has no word for nothing."""
    if value is None:
        return "not set"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)
