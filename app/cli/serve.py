"""`edgecloud serve`: the gateway kept running, behind HTTP for every tool and a private socket for `ask`
and the TUI.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from edgecloud.config.loading import load
from edgecloud.errors import ConfigError, EdgeCloudError, Unavailable
from edgecloud.settings import Settings
from edgecloud.types import ChatRequest, Health

from . import offers
from .group import Group
from .shell import Decimal, State, Whole, warn

if TYPE_CHECKING:
    from ..gateway import Gateway

Build = Callable[[Settings], "Gateway"]

# What closing engines and history may take after the drain, seconds: no more than a step of each model, but
# as long as the journal waits for another program that has the database.
CLOSE_S = 45.0


@click.group(cls=Group, invoke_without_command=True)
@click.option("--host", help="Address to listen on; several with commas. Beyond loopback a key is required.")
@click.option("--port", type=Whole(0, 65535), help="Port to listen on; 0 picks a free one.")
@click.option("-m", "--model", shell_complete=offers.models, help="The model that `auto` means.")
@click.option("--ctx-size", type=Whole(0), help="Tokens of context shared by all sequences.")
@click.option("--parallel", type=Whole(1, 256), help="Sequences decoded together.")
@click.option("--threads", type=Whole(0, 1024), help="CPU threads; 0 measures what is best.")
@click.option("--api-key", multiple=True, help="A key that clients must send; may be given again.")
@click.option("--cors-origin", multiple=True, help="A web origin that may call us, 'localhost', or '*'.")
@click.option("--allowed-host", multiple=True, help="A Host name answered besides loopback ones.")
@click.option("--drain", type=Decimal(0), help="Seconds that running answers get after SIGTERM.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-json", is_flag=True, help="Log lines as JSON objects.")
@click.pass_context
def serve(context: click.Context, /, log_json: bool, **flags: Any) -> None:
    """Answer over the OpenAI and Anthropic APIs on this machine (http://127.0.0.1:8484).

    The first Ctrl-C or SIGTERM lets running answers finish, the second stops at once.
    """
    if context.invoked_subcommand is None:
        state = context.find_object(State) or State()
        run(state.settings(**_overrides(flags)), log_json=log_json, unflagged=state.settings())


@serve.command()
@click.pass_context
def status(context: click.Context) -> None:
    """Say whether a server is running, where, how it is, and if your settings are no longer its own.

    Exit code 1 if there is none, or it can't answer.
    """
    from edgecloud.wire import native

    state = context.find_object(State) or State()
    report = asyncio.run(_ping(state.settings()))
    health: Health = native.load(report["health"])
    click.echo(f"edgecloud {report['version']} serves {report['url']} (pid {report['pid']}): {health.detail}")
    click.echo(f"{health.running} running, {health.waiting} waiting.")
    for use in health.kv:
        click.echo(f"{use.model} is loaded; {use.used:,} of {use.cells:,} tokens of its context are in use.")
    if report["differs"]:
        click.echo(
            f"Its settings are not those that hold here now ({', '.join(report['differs'])}): "
            "`ask` and the chat run without it until it is restarted."
        )
    if not health.ok:
        context.exit(1)


@serve.command()
def stop() -> None:
    """Stop the running server, letting its running answers finish."""
    report = asyncio.run(_ping(stop=True))
    click.echo(f"Stopping the server at {report['url']} (pid {report['pid']}) …", err=True)
    patience = load().server.drain_s + CLOSE_S + 5
    deadline = time.monotonic() + patience
    while _alive(report["pid"]):
        if time.monotonic() > deadline:
            raise Unavailable(f"The server (pid {report['pid']}) is still running after {patience:g} s.")
        time.sleep(0.05)
    click.echo("Stopped.", err=True)


# ------------------------------------------------------------------------------------------------- the server


def run(
    settings: Settings,
    *,
    log_json: bool = False,
    build: Build | None = None,
    unflagged: Settings | None = None,
) -> None:
    """Serve until a signal. `build` makes the gateway; None is this machine's own. `unflagged` are the
    settings without the flags of `serve`, which those who use the server put up with.

    Raises `ConfigError` when it may not or cannot listen, `ModelLoadError` and the like when the model fails.
    """
    import uvloop

    from edgecloud.http.server import PortInUse, listen
    from edgecloud.log_lines import configure_logging

    require_key_beyond_loopback(settings)
    try:
        sockets = listen(settings.server.host, settings.server.port)
    except PortInUse as error:
        if (url := asyncio.run(_own_server(settings.server.port))) is None:
            raise
        raise PortInUse(
            f"edgecloud serves {url} already: `edgecloud serve stop` ends it, --port chooses another port."
        ) from error
    secrets = [*settings.server.all_keys, *(entry.api_key for entry in settings.pool if entry.api_key)]
    configure_logging(settings.log_level, secrets=secrets, as_json=log_json)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, sockets, build, unflagged))


def require_key_beyond_loopback(settings: Settings) -> None:
    """Refuse to let a network in without a key. Raises `ConfigError`."""
    from edgecloud.http.host import is_loopback

    if settings.server.all_keys:
        return
    for name in settings.server.host.split(","):
        if not is_loopback(name.strip().lower()):
            raise ConfigError(
                f"Serving on {name.strip()} opens edgecloud to the network: set a key with --api-key, "
                "or stay on 127.0.0.1."
            )


async def _serve(
    settings: Settings, sockets: Sequence[socket.socket], build: Build | None, unflagged: Settings | None
) -> None:
    from edgecloud.http.drain import Drain
    from edgecloud.http.server import Server, url_of

    from ..open import build_gateway
    from ..proxy.app import create_app
    from ..socket_server import SocketServer

    url, drain = url_of(sockets), Drain()
    gateway = (build or build_gateway)(settings)
    try:
        if gateway.journal is not None:
            gateway.journal.prepare()
        await _warm_up(gateway)
        server = Server(
            create_app(gateway, settings, drain=drain),
            drain,
            drain_s=settings.server.drain_s,
            ready=lambda: _announce(settings, url),
        )
        private = SocketServer(gateway, url, server.stop, settings=unflagged or settings, drain=drain)
        await private.start()
        try:
            await server.serve(list(sockets))
        finally:
            await private.aclose()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                if lost := await gateway.aclose():
                    warn(lost)


async def _warm_up(gateway: Gateway) -> None:
    """Load the default model and draw one token, so that 'ready' is true and a broken model is told at
    once.
    """
    engine = await gateway.catalog.engine("auto", listed_only=False)
    if engine.local:
        async for _ in engine.generate(ChatRequest(prompt="Hello", max_tokens=1, journal=False)):
            pass


def _announce(settings: Settings, url: str) -> None:
    key = " with your key" if settings.server.all_keys else ""
    click.echo(
        f"edgecloud serves {settings.model} at {url}: "
        f"point clients to OPENAI_BASE_URL={url}/v1{key}. Ctrl-C stops it.",
        err=True,
    )


# ------------------------------------------------------------------------------------------- a running server


async def _ping(settings: Settings | None = None, *, stop: bool = False) -> dict[str, Any]:
    from ..client import ANSWER_S, GatewayClient, Gone, socket_path

    client = GatewayClient(socket_path(), settings)
    try:
        async with asyncio.timeout(ANSWER_S):
            report = await client.ping()
            if stop:
                await client.stop()
    except TimeoutError:
        raise Unavailable(
            f"The running server has not answered for {ANSWER_S:g} s: it hangs, so end its process by hand."
        ) from None
    except Gone:
        raise Unavailable("No edgecloud server is running.") from None
    return report


async def _own_server(port: int) -> str | None:
    """The address of this user's running server, if it is what listens on the port."""
    try:
        url: str = (await _ping())["url"]
    except EdgeCloudError:
        return None
    return url if urlsplit(url).port == port else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _overrides(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags as dotted settings; a flag that was not given is None."""
    keys = {
        "host": "server.host",
        "port": "server.port",
        "model": "model",
        "ctx_size": "local.ctx_size",
        "parallel": "local.parallel",
        "threads": "local.threads",
        "api_key": "server.api_keys",
        "cors_origin": "server.cors_origins",
        "allowed_host": "server.allowed_hosts",
        "drain": "server.drain_s",
        "log_level": "log_level",
    }
    return {keys[name]: None if value == () else value for name, value in flags.items()}
