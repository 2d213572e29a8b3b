"""`edgecloud why`: why a request went where it went, and what came of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from . import offers
from .shell import State, note, print_json, print_text

if TYPE_CHECKING:
    from edgecloud.settings import Settings
    from edgecloud.types import ChatRequest


@click.command()
@click.argument("request", default="", shell_complete=offers.requests)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.pass_obj
def why(state: State, request: str, as_json: bool) -> None:
    """Say why REQUEST went where it went: who was weighed, who was ruled out by what, what was tried.

    REQUEST is the id of a receipt, or the beginning of one; without it, the last request.
    """
    from ..explaining import request_story

    print_story(request_story(state.ledger(), request), as_json=as_json)


def print_plan(state: State, settings: Settings, request: ChatRequest, *, as_json: bool) -> None:
    """What would be decided for a request; nobody is asked. Raises the refusal where nobody may be."""
    print_story(asyncio.run(_plan(state, settings, request)), as_json=as_json)


def print_story(story: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(story)
        return
    print_text("\n".join(story["sentences"]))


async def _plan(state: State, settings: Settings, request: ChatRequest) -> dict[str, Any]:
    gateway = await state.open_gateway(settings)
    if gateway.aside:
        note(f"edgecloud: {gateway.aside}")
    try:
        return await gateway.explain(request)
    finally:
        await gateway.aclose()
