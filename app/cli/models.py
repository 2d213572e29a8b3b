"""`edgecloud models`: which models there are, getting and removing them, choosing one, making one fast."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from edgecloud.units import size

from . import offers
from .group import ListingGroup
from .progress import PullLine
from .shell import Decimal, State, note, print_json, print_table, print_text

if TYPE_CHECKING:
    from pathlib import Path

    from edgecloud.models import ModelFile
    from edgecloud.settings import Settings

    from ...local_engine.tune import Tuning

AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(cls=ListingGroup)
def models() -> None:
    """List, get, choose and tune models.

    A model is smollm2 (the starter), a path to a .gguf file, hf:owner/repo:QUANT, or a name that `list`
    shows.
    """


@models.command("list")
@AS_JSON
@click.pass_obj
def list_(state: State, as_json: bool) -> None:
    """List the models that are here: name, kind, size, and which are in use."""
    from edgecloud.models import survey

    settings = state.settings()
    found = survey(settings)
    roles = _roles(settings)
    if as_json:
        print_json([_facts(model) | {"role": roles.get(model.path, "")} for model in found.models])
    else:
        print_table(
            [
                (
                    model.name,
                    model.kind,
                    size(model.size),
                    " ".join(filter(None, (roles.get(model.path), model.variant))),
                )
                for model in found.models
            ]
        )
    for problem in found.problems:
        note(problem.message)


@models.command()
@click.argument("name", required=False, shell_complete=offers.models)
@AS_JSON
@click.pass_obj
def info(state: State, name: str | None, as_json: bool) -> None:
    """Show what a model is: size, context, memory for the conversation, and its tuned copy if it has one."""
    from edgecloud.models import resolve

    settings = state.settings()
    model = resolve(_meant(name, settings), settings)
    facts = _facts(model)
    if model.path.suffix != ".onnx":
        facts |= _gguf_facts(model)
    if as_json:
        print_json(facts)
    else:
        print_table([(key.replace("_", " "), value) for key, value in _in_words(facts).items()])


@models.command()
@click.argument("spec")
@click.pass_obj
def pull(state: State, spec: str) -> None:
    """Get a model: hf:owner/repo:QUANT. What an interrupted pull got is kept and continued."""
    from edgecloud import models as files

    line = PullLine() if sys.stderr.isatty() else None
    settings = state.settings()
    if not settings.offline:
        note(f"Asking the hub for {spec} …")
    try:
        model = files.pull(spec, settings, line)
    finally:
        if line is not None:
            line.clear()
    print_text(model.name)
    note(f"{size(model.size)}; ask it with: edgecloud ask -m {model.name} …")


@models.command()
@click.argument("name", shell_complete=offers.models)
@click.pass_obj
def rm(state: State, name: str) -> None:
    """Remove a pulled model and its tuned copy."""
    from edgecloud.models import remove

    settings = state.settings()
    num_used = len(_roles(settings))
    model = remove(name, settings)
    note(f"Removed {model.name} ({size(model.size)}).")
    if len(_roles(settings)) < num_used:
        note(
            f"{model.name} is still what your settings ask for; choose another: edgecloud models default NAME"
        )


@models.command()
@click.argument("name", required=False, shell_complete=offers.models)
@click.pass_obj
def default(state: State, name: str | None) -> None:
    """Choose the model that answers (or, if it is one, the embedder); without NAME, show it."""
    from edgecloud.config.editing import set_value
    from edgecloud.models import set_default

    settings = state.settings()
    if name is None:
        print_text(settings.model)
        return
    if any(entry.name == settings.meant(name) for entry in settings.pool):
        set_value("model", name)
        note(f"{name} is now the default model.")
        return
    model = set_default(name, settings)
    note(f"{model.name} is now the default {'model' if model.kind == 'chat' else 'embedder'}.")


@models.command()
@click.argument("name", required=False, shell_complete=offers.models)
@click.option("--undo", is_flag=True, help="Forget the tuned copy.")
@click.option("--kl", type=Decimal(0), help="How far answers may stray, in nats a token.  [default: 0.02]")
@click.option("--try", "candidates", metavar="TYPES", help="Quantisations to try, like Q8_0,Q4_K_M.")
@AS_JSON
@click.pass_obj
def tune(
    state: State, name: str | None, undo: bool, kl: float | None, candidates: str | None, as_json: bool
) -> None:
    """Find the quantisation of a model that is fastest here, and use it from now on.

    Each is measured in turns with the file as it is, and its answers are compared with it. Takes minutes: let
    the machine rest meanwhile.
    """
    from edgecloud.models import resolve

    from ...local_engine import tune as tuning
    from ..logs import redirect_native_output

    settings = state.settings()
    model = resolve(_meant(name, settings), settings, tuned=False)
    if undo:
        existed = tuning.undo(model)
        note(f"{model.name} is used as it is again." if existed else f"{model.name} has no tuned copy.")
        return
    redirect_native_output()
    result = tuning.tune(
        model,
        settings,
        candidates=candidates.split(",") if candidates else tuning.CANDIDATES,
        kl_bound=tuning.KL_BOUND if kl is None else kl,
        say=note,
    )
    if as_json:
        print_json(tuning.as_json(result))
    else:
        print_tuning(result)


def print_tuning(result: Tuning) -> None:
    """The measurements as a table, and what they led to."""
    head = ("type", "size", "prefill", "1 chat", "8 chats", "KL", "same top", "gain", "")
    rows = [
        (
            row.quant,
            size(row.size),
            *(f"{rate:.0f}" for rate in row.speed),
            f"{row.divergence.kl:.4f}",
            f"{row.divergence.same_top:.0%}",
            f"{row.gain:.2f}x",
            row.verdict,
        )
        for row in result.rows
    ]
    print_table([head, *rows])
    print_text(
        f"Tokens a second with {result.threads} threads, load {result.load:.1f}; gain is for a turn of "
        "200 new and 300 answered tokens; KL is in nats a token."
    )
    if result.kept is None:
        print_text("The file as it is serves best here: nothing changes.")
    else:
        print_text(f"The {result.kept} copy is used from now on; edgecloud models tune --undo takes it back.")


def _meant(name: str | None, settings: Settings) -> str:
    """The model that answers where none is named, or `auto`."""
    return settings.model if name in (None, "auto") else str(name)


def _roles(settings: Settings) -> dict[Path, str]:
    """What the settings use the files for, whatever name they give them."""
    from edgecloud.errors import EdgeCloudError
    from edgecloud.models import resolve

    roles = {}
    for name, role in ((settings.embedder, "embedder"), (settings.model, "default")):
        with suppress(EdgeCloudError):  # told among the problems, or a pool
            roles[resolve(name, settings).path] = role
    return roles


def _facts(model: ModelFile) -> dict[str, Any]:
    return {
        "name": model.name,
        "kind": model.kind,
        "size": model.size,
        "path": str(model.path),
        "variant": model.variant,
    }


def _gguf_facts(model: ModelFile) -> dict[str, Any]:
    from edgecloud.gguf import fingerprint, read_info

    facts = read_info(model.path)
    return {
        "title": facts.name,
        "architecture": facts.architecture,
        "quantisation": facts.file_type,
        "parameters": facts.n_params,
        "layers": facts.block_count,
        "context": facts.context_length,
        "sliding_window": facts.sliding_window,
        "vocabulary": facts.vocab_size,
        "shards": facts.shards,
        "chat_template": facts.chat_template is not None,
        "kv_bytes_per_token": 2 * facts.kv_width,
        "fingerprint": fingerprint(model.path),
        "tuned": _measured(model.path) if model.variant else None,
    }


def _in_words(facts: dict[str, Any]) -> dict[str, str]:
    """The facts that are known, as a person reads them."""
    shown: dict[str, str] = {}
    for key, value in facts.items():
        match key, value:
            case _, None | "":
                continue
            case "size", _:
                shown[key] = size(value)
            case "kv_bytes_per_token", _:
                whole = (
                    f", {size(value * facts['context'])} for its whole context" if facts["context"] else ""
                )
                shown["memory of a chat"] = f"{size(value)} a token{whole}"
            case "chat_template", _:
                shown[key] = "yes" if value else "none: for completions only"
            case _, int():
                shown[key] = f"{value:,}"
            case _:
                shown[key] = str(value)
    return shown


def _measured(copy: Path) -> str | None:
    """What `tune` found when it kept this copy."""
    from ...local_engine.tune import read_report

    row = read_report(copy)
    return f"{row.gain:.2f} times as fast, KL {row.divergence.kl:.4f}" if row else None
