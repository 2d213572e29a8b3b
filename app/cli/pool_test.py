"""`edgecloud pool test`: whether the servers answer, how fast, and with how much context."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from edgecloud.errors import DeadlineExceeded, EdgeCloudError, UpstreamError
from edgecloud.types import ChatRequest, Done, Message, Sampling, TextDelta

from .pool_entries import AS_JSON, entry_named
from .shell import State, print_json, print_table

if TYPE_CHECKING:
    from edgecloud.engine import Engine
    from edgecloud.settings import PoolEntry, Settings

PROMPT = "Say hello."
PATIENCE_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one address did when it was asked for a few tokens."""

    name: str
    address: str
    ok: bool
    detail: str
    context: int = 0
    ttft_s: float = 0.0
    tokens_per_s: float = 0.0


@click.command()
@click.argument("names", nargs=-1)
@AS_JSON
@click.pass_context
def test(ctx: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Ask NAMES (or all) for a few tokens, at each address. Exit code 1 if one fails.

    A server that you pay for is paid for these tokens too.
    """
    state: State = ctx.obj
    settings = state.settings()
    for name in names:
        entry_named(settings, name)
    findings = asyncio.run(_test_all(state, settings, names))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        print_table(
            [("ok" if each.ok else "fail", each.name, each.address, each.detail) for each in findings]
        )
    ctx.exit(0 if all(finding.ok for finding in findings) else 1)


async def _test_all(state: State, settings: Settings, names: tuple[str, ...]) -> list[Finding]:
    from ..catalog import Catalog
    from ..world import Engines

    catalog = Catalog(settings)
    engines = Engines(settings, catalog, None)
    findings = []
    try:
        ledger = state.ledger()
        for entry in settings.pool:
            if names and entry.name not in names:
                continue
            upstream = engines.of_pool(entry)
            for deployment in upstream.deployments:
                finding = await _test(entry, deployment.name, deployment.engine)
                findings.append(finding)
                upstream.learn_context(finding.context)
            kept = ledger.engines().get(entry.name, (0.0, {}))[1]
            ledger.keep_engines({entry.name: {**kept, "context": upstream.state()["context"]}})
    finally:
        await catalog.aclose()
    return findings


async def _test(entry: PoolEntry, address: str, engine: Engine) -> Finding:
    name = entry.name
    request = ChatRequest(
        messages=(Message("user", PROMPT),),
        max_tokens=16,
        sampling=Sampling(temperature=0.0),
        deadline_s=PATIENCE_S,
        journal=False,
    )
    began = time.monotonic()
    first_s, text, done = 0.0, "", None
    try:
        async with aclosing(engine.generate(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    first_s = first_s or time.monotonic() - began
                    text += event.text
                elif isinstance(event, Done):
                    done = event
        if done is None:
            raise UpstreamError(f"{name} ended without an answer.")
        context = (await engine.capabilities()).context
    except DeadlineExceeded:
        what = "come to the end of its few tokens" if first_s else "begin to answer"
        return Finding(name, address, False, f"{name} did not {what} within {PATIENCE_S:g} s.")
    except EdgeCloudError as error:
        return Finding(name, address, False, await _explained(entry, engine, error))
    rest_s = time.monotonic() - began - first_s
    rate = done.usage.completion_tokens / rest_s if rest_s > 0 else 0.0
    said = f"first token after {first_s:.2f} s"
    said += f", {context:,} tokens of context" if context else ""
    said += "" if text.strip() else "; it said nothing that can be read"
    return Finding(name, address, True, said, context, first_s, rate)


async def _explained(entry: PoolEntry, engine: Engine, error: EdgeCloudError) -> str:
    """The error's sentence, or a better one where the model or the address is not what it should be."""
    from ...pool.client import RemoteEngine

    if not (isinstance(error, UpstreamError) and error.upstream_status == 404):
        return error.message
    if not isinstance(engine, RemoteEngine):
        return error.message
    try:
        listed = await engine.models()
    except EdgeCloudError as other:
        if isinstance(other, UpstreamError) and other.upstream_status == 404:
            return (
                f"{entry.name} has neither chat nor models there: check its url, which usually ends in /v1."
            )
        return error.message
    if entry.model in listed or not listed:
        return error.message
    known = ", ".join(listed[:12])
    return f"{entry.name} has no model {entry.model}: set its model to one that it lists ({known})."
