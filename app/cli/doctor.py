"""`edgecloud doctor`: what works on this machine, what does not, and what to do about it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import click

from edgecloud.errors import EdgeCloudError

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
    try:
        settings = state.settings()
    except EdgeCloudError as error:
        yield Check("settings", "fail", error.message)
        return
    yield Check("settings", "ok", _settings_detail())
    checks: dict[str, Callable[[Settings], tuple[Verdict, str]]] = {
        "offline": _offline,
        "model": _model,
        "llama.cpp": _binding,
        "threads": _threads,
        "memory": _memory,
        "embedder": _embedder,
        "history": _history,
        "server": _server,
    }
    for name, check in checks.items():
        try:
            yield Check(name, *check(settings))
        except EdgeCloudError as error:
            yield Check(name, "warn" if name == "embedder" else "fail", error.message)
        except Exception as error:
            yield Check(name, "fail", f"The check broke down: {type(error).__name__}: {error}.")


def _settings_detail() -> str:
    from edgecloud.settings import config_path

    path = config_path()
    return str(path) if path.exists() else f"defaults; {path} does not exist"


def _offline(settings: Settings) -> tuple[Verdict, str]:
    return "ok", "on: only this machine is connected to" if settings.offline else "off"


def _model(settings: Settings) -> tuple[Verdict, str]:
    pool = next((entry for entry in settings.pool if entry.name == settings.model), None)
    if pool is not None:
        verdict: Verdict = "fail" if settings.offline and not pool.local else "ok"
        return verdict, f"{pool.name}: {pool.model} at {pool.url}"
    from edgecloud.models import resolve

    file = resolve(settings.model, settings)
    variant = f", {file.variant}" if file.variant else ""
    return "ok", f"{file.name}{variant}, {file.size / 2**20:,.0f} MB, {file.path}"


def _binding(settings: Settings) -> tuple[Verdict, str]:
    from importlib.metadata import version

    from ...local_engine import llama

    offload = "with GPU offload" if llama.supports_gpu() else "CPU only"
    return "ok", f"llama-cpp-python {version('llama-cpp-python')}, {offload}"


def _threads(settings: Settings) -> tuple[Verdict, str]:
    from ...local_engine.threads import choose_threads

    return "ok", choose_threads(settings.local.threads).reason


def _memory(settings: Settings) -> tuple[Verdict, str]:
    from edgecloud import gguf
    from edgecloud.models import resolve

    from ...local_engine.fit import MB, available_memory, plan_memory

    available = available_memory()
    if any(entry.name == settings.model for entry in settings.pool):
        return "ok", f"{available // MB:,} MB free"
    file = resolve(settings.model, settings)
    budget = settings.local.memory_budget_mb * MB or available
    plan = plan_memory(gguf.read_info(file.path), settings.local, budget, name=file.name)
    return "ok", f"{file.name} takes {plan.total // MB:,} MB ({plan}); {budget // MB:,} MB are free"


def _embedder(settings: Settings) -> tuple[Verdict, str]:
    from edgecloud.models import resolve

    file = resolve(settings.embedder, settings)
    return "ok", f"{file.name}, {file.path}"


def _history(settings: Settings) -> tuple[Verdict, str]:
    from edgecloud.settings import data_dir
    from edgecloud.storage import check_database

    path = data_dir() / "edgecloud.db"
    if not settings.history.enabled:
        return "ok", "off"
    if not path.exists():
        folder = next(parent for parent in path.parents if parent.exists())
        writable = os.access(folder, os.W_OK)
        return ("ok", f"none yet; {path}") if writable else ("fail", f"{folder} cannot be written.")
    check_database(path)
    return "ok", f"{path.stat().st_size / 2**20:,.1f} MB, {path}"


def _server(settings: Settings) -> tuple[Verdict, str]:
    from ..client import connect

    client = asyncio.run(connect())
    if client is None:
        return "ok", "not running"
    pong = asyncio.run(client.ping())
    return "ok", f"running at {pong.get('url')}, process {pong.get('pid')}"
