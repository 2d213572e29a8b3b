"""`edgecloud pool test`: whether the servers answer, how fast, and with how much context."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from edgecloud.errors import DeadlineExceeded, EdgeCloudError, UpstreamError
from edgecloud.types import ChatRequest, Done, Message, Sampling, TextDelta

from . import offers
from .pool_entries import AS_JSON, addresses_of, entry_named, say_none
from .pool_findings import no_such_model
from .shell import Decimal, State, print_json, print_text

if TYPE_CHECKING:
    from edgecloud.engine import Engine
    from edgecloud.settings import PoolEntry, Settings

    from ..upstreams import Deployment

PROMPT = "Say hello."
PATIENCE_S = 10.0


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
    continues: bool = False


@click.command()
@click.argument("names", nargs=-1, shell_complete=offers.pools)
@click.option(
    "--timeout",
    "patience_s",
    type=Decimal(0, min_open=True),
    default=PATIENCE_S,
    show_default=True,
    help="Seconds for each address; more where a model is loaded first.",
)
@AS_JSON
@click.pass_context
def test(ctx: click.Context, names: tuple[str, ...], patience_s: float, as_json: bool) -> None:
    """Ask NAMES (or all) for a few tokens, at each address, all at once. Exit code 1 if one fails.

    A server that you pay for is paid for these tokens too.
    """
    state: State = ctx.obj
    settings = state.settings()
    entries = [entry_named(settings, name) for name in dict.fromkeys(names)] or list(settings.pool)
    if not entries:
        say_none()
    show = (lambda finding: None) if as_json else _printer(entries)
    findings = asyncio.run(_test_all(state, settings, entries, patience_s, show))
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    ctx.exit(0 if all(finding.ok for finding in findings) else 1)


def _printer(entries: Sequence[PoolEntry]) -> Callable[[Finding], None]:
    """Prints findings as they come, in columns: how wide these are is known before."""
    name_width = max((len(entry.name) for entry in entries), default=0)
    addresses = [address for entry in entries for address in addresses_of(entry)]
    address_width = max(map(len, addresses), default=0)

    def show(each: Finding) -> None:
        verdict = "ok  " if each.ok else "fail"
        print_text(f"{verdict}  {each.name:<{name_width}}  {each.address:<{address_width}}  {each.detail}")

    return show


async def _test_all(
    state: State,
    settings: Settings,
    entries: Sequence[PoolEntry],
    patience_s: float,
    show: Callable[[Finding], None],
) -> list[Finding]:
    """What each address did, in the order of the config; each is shown as soon as it is known."""
    from ..catalog import Catalog
    from ..world import Engines

    catalog = Catalog(settings)
    engines = Engines(settings, catalog, None)
    upstreams = {entry.name: engines.of_pool(entry) for entry in entries}

    async def ask(entry: PoolEntry, deployment: Deployment) -> Finding:
        finding = await _test(entry, deployment.name, deployment.engine, patience_s)
        show(finding)
        return finding

    try:
        findings = await asyncio.gather(
            *(ask(entry, each) for entry in entries for each in upstreams[entry.name].deployments)
        )
    finally:
        await catalog.aclose()
    for finding in findings:
        upstreams[finding.name].learn_context(finding.context)
    if entries:
        ledger = state.ledger()
        kept = ledger.engines()
        well = {(finding.name, finding.address) for finding in findings if finding.ok}
        ledger.keep_engines(
            {
                name: {
                    **(learnt := kept.get(name, (0.0, {}))[1]),
                    "context": upstream.state()["context"],
                    # What has just answered rests no longer.
                    "breakers": {
                        address: rest
                        for address, rest in learnt.get("breakers", {}).items()
                        if (name, address) not in well
                    },
                }
                for name, upstream in upstreams.items()
            }
        )
    return findings


async def _test(entry: PoolEntry, address: str, engine: Engine, patience_s: float) -> Finding:
    name = entry.name
    request = ChatRequest(
        messages=(Message("user", PROMPT),),
        max_tokens=16,
        sampling=Sampling(temperature=0.0),
        deadline_s=patience_s,
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
        can = await engine.capabilities()
    except DeadlineExceeded:
        what = "come to the end of its few tokens" if first_s else "begin to answer"
        said = f"{name} did not {what} within {patience_s:g} s: it is busy, still loads its model, or hangs."
        return Finding(name, address, False, said)
    except EdgeCloudError as error:
        return Finding(name, address, False, await _explained(entry, engine, error))
    rest_s = time.monotonic() - began - first_s
    rate = done.usage.completion_tokens / rest_s if rest_s > 0 else 0.0
    said = f"first token after {first_s:.2f} s"
    said += f", {can.context:,} tokens of context" if can.context else ""
    said += ", goes on with a message that was begun" if can.continue_final else ""
    said += "" if text.strip() else "; it said nothing that can be read"
    return Finding(name, address, True, said, can.context, first_s, rate, can.continue_final)


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
    return no_such_model(entry, listed)
