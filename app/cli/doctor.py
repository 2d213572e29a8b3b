"""`edgecloud doctor`: what works on this machine, what does not, and what to do about it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import click

from edgecloud.errors import EdgeCloudError, NotFound, StorageError
from edgecloud.units import MB, megabytes, size

from ..databases import open_answers
from . import findings
from .pool_findings import pool_findings
from .shell import State, print_json, print_table

if TYPE_CHECKING:
    from edgecloud.settings import Settings

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. `warn` is something that is missing and not needed for an answer."""

    name: str
    verdict: Verdict
    detail: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what works on this machine. Exit code 1 if something does not that an answer needs."""
    state: State = ctx.obj
    checks = list(run_checks(state))
    failed = any(check.verdict == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [asdict(check) for check in checks]})
    else:
        print_table([(check.verdict, check.name, check.detail) for check in checks])
    ctx.exit(1 if failed else 0)


def run_checks(state: State) -> Iterator[Check]:
    """Every check, each for itself: one that breaks down is a finding, not the end."""
    from edgecloud.config.sources import stray_variables

    try:
        settings = state.settings()
    except EdgeCloudError as error:
        yield Check("settings", "fail", error.message)
        return
    yield Check("settings", "ok", _settings_detail())
    for name in stray_variables():
        yield Check("environment", "warn", f"{name} is no setting of edgecloud's.")
    checks: dict[str, Callable[[Settings], str]] = {
        "offline": _offline,
        "model": findings.model,
        "aliases": findings.aliases,
        "chat template": findings.chat_template,
        "llama.cpp": _binding,
        "threads": _threads,
        "memory": _memory,
        "embedder": findings.embedder,
        "history": _history,
        "kept answers": _kept_answers,
        "address": findings.address,
        "theme": findings.theme,
        "keys": findings.keys,
        "server": _server,
    }
    failed: set[str] = set()
    for name, check in checks.items():
        if name == "chat template" and "model" in failed and not settings.local.chat_template:
            continue  # the model's own, of a model that isn't there
        try:
            if found := check(settings):
                yield Check(name, "ok", found)
        except EdgeCloudError as error:
            # Without an embedder there are answers; one that is none is a mistake. Without the server too,
            # without kept ones, and by other names.
            needless = name in ("server", "kept answers", "aliases", "keys") or (
                name == "embedder" and isinstance(error, NotFound)
            )
            yield Check(name, "warn" if needless else "fail", error.message)
            failed.add(name)
        except Exception as error:
            yield Check(name, "fail", f"The check broke down: {type(error).__name__}: {error}.")
    # Without them there are answers from this machine, so what is wrong with one is no failure of it.
    for name, is_well, told in pool_findings(settings):
        yield Check(f"pool {name}", "ok" if is_well else "warn", told)
    if not settings.pool:
        yield Check("pools", "ok", "none; `edgecloud pool add NAME URL` adds one")


def _settings_detail() -> str:
    from edgecloud.folders import config_path

    path = config_path()
    return str(path) if path.exists() else f"defaults; {path} does not exist"


def _offline(settings: Settings) -> str:
    return "on: only this machine is connected to" if settings.offline else "off"


def _binding(settings: Settings) -> str:
    from importlib.metadata import version

    from ...local_engine import llama

    offload = "with GPU offload" if llama.supports_gpu() else "CPU only"
    return f"llama-cpp-python {version('llama-cpp-python')}, {offload}"


def _threads(settings: Settings) -> str:
    from ...local_engine.threads import choose_threads

    return choose_threads(settings.local.threads).reason


def _memory(settings: Settings) -> str:
    from edgecloud import gguf
    from edgecloud.models import resolve

    from ...local_engine.fit import available_memory, plan_memory, room

    available = available_memory()
    if any(entry.name == settings.meant(settings.model) for entry in settings.pool):
        return f"{megabytes(available)} are free"
    try:
        file = resolve(settings.model, settings)
    except EdgeCloudError:  # told under `model`
        return f"{megabytes(available)} are free"
    budget = settings.local.memory_budget_mb * MB or available
    plan = plan_memory(gguf.read_info(file.path), settings.local, budget, name=file.name)
    return f"{file.name} takes {plan}; {room(settings.local, budget)}"


def _history(settings: Settings) -> str:
    from edgecloud.folders import data_dir
    from edgecloud.storage import check_database, check_writable

    path = data_dir() / "edgecloud.db"
    if not settings.history.enabled:
        return "off"
    if not path.exists():
        folder = next(parent for parent in path.parents if parent.exists())
        if not folder.is_dir():
            raise StorageError(f"{folder} is a file, and has to be a folder: move it, or set EDGECLOUD_HOME.")
        disk = shutil.disk_usage(folder)
        if (
            not os.access(folder, os.W_OK) or not disk.total
        ):  # what the kernel makes up, like /proc, has no size
            raise StorageError(f"{folder} cannot be written.")
        if disk.free < MB:
            raise StorageError(f"The disk with {folder} is full; free some space.")
        return f"none yet; {path}"
    check_database(path)
    check_writable(path)
    return f"{size(path.stat().st_size)}, {path}"


def _kept_answers(settings: Settings) -> str:
    from edgecloud.folders import data_dir
    from edgecloud.storage import check_database

    path = data_dir() / "cache.db"
    if not path.exists():
        return "none yet"
    check_database(path)
    with closing(open_answers(settings)) as answers:
        kept = answers.stats()
        told = f"{kept.entries}, {size(kept.bytes)}"
        try:
            unsearched = answers.num_unsearched(_fingerprint(settings)) if kept.entries else 0
        except EdgeCloudError:  # told under `embedder`
            return told
    if unsearched:
        raise NotFound(
            f"{told}; similar questions don't find {unsearched} of them, which were kept with another "
            f"embedder than {settings.embedder}: they go by themselves as they expire, all go with "
            "`edgecloud cache clear`, and they are found again with the embedder that they had."
        )
    return told


def _fingerprint(settings: Settings) -> str:
    """What the configured embedder's vectors are known by. A GGUF one is loaded for it."""
    from edgecloud.models import resolve

    from ...local_engine.embedder import open_embedder

    embedder = open_embedder(resolve(settings.embedder, settings, kind="embedding"), settings)
    asyncio.run(embedder.aclose())
    return embedder.fingerprint


def _server(settings: Settings) -> str:
    from ..client import connect

    client = asyncio.run(connect(settings))
    if client is None:
        return "not running"
    pong = asyncio.run(client.ping())
    return f"running at {pong.get('url')}, process {pong.get('pid')}"
