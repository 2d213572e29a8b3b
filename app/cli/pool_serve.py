"""`edgecloud pool serve`: one model on this machine's GPU or CPU, over the OpenAI API, for many machines."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from edgecloud.errors import ConfigError
from edgecloud.settings import ServerSettings, Settings

from . import offers
from .serve import CLOSE_S, require_key_beyond_loopback
from .shell import Decimal, State, Whole

if TYPE_CHECKING:
    from ...pool.engine import PoolEngine

Build = Callable[[Settings], "PoolEngine"]


@click.command()
@click.option(
    "-m",
    "--model",
    shell_complete=offers.models,
    help="smollm2, a .gguf file, a folder of safetensors, or hf:owner/repo:QUANT.",
)
@click.option("--served-name", help="The name that clients ask for; else the model's own.")
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), help="Where it computes.")
@click.option("--host", help="Address to listen on; beyond loopback a key is required.")
@click.option("--port", type=Whole(0, 65535), help="Port to listen on (8000); 0 picks a free one.")
@click.option("--api-key", multiple=True, help="A key that clients must send; may be given again.")
@click.option("--allowed-host", multiple=True, help="A name that clients know this machine by; '*' for any.")
@click.option("--context", type=Whole(0), help="Most tokens of one request.")
@click.option("--kv-mb", type=Whole(0), help="Memory for computed context; 0: from what is free.")
@click.option(
    "--kv-type",
    type=click.Choice(["auto", "float32", "float16", "bfloat16", "int8", "fp8"]),
    help="How computed context is kept.",
)
@click.option("--host-mb", type=Whole(0), help="Main memory for context that has to give way.")
@click.option("--max-running", type=Whole(1, 4096), help="Answers decoded together.")
@click.option("--max-waiting", type=Whole(1), help="Requests in the queue before 429.")
@click.option("--token-budget", type=Whole(0), help="Tokens computed in one step, prompts included.")
@click.option("--policy", type=click.Choice(["priority", "fcfs", "deadline", "sjf", "fair"]))
@click.option("--threads", type=Whole(0, 1024), help="CPU threads; 0: what this machine can give.")
@click.option("--drain", type=Decimal(0), help="Seconds that running answers get after SIGTERM.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-json", is_flag=True, help="Log lines as JSON objects.")
@click.pass_context
def serve(context: click.Context, /, log_json: bool, **flags: Any) -> None:
    """Answer over the OpenAI API with a model on this machine (http://127.0.0.1:8000).

    The first Ctrl-C or SIGTERM lets running answers finish, the second stops at once.
    """
    # Registered before anything else, so that it runs when all others have.
    atexit.register(_mute_teardown)
    state = context.find_object(State) or State()
    run(state.settings(**_overrides(flags)), log_json=log_json)


def run(settings: Settings, *, log_json: bool = False, build: Build | None = None) -> None:
    """Serve until a signal. `build` makes the engine; None loads the model that the settings name.

    Raises `ConfigError` when it may not or cannot listen, `ModelLoadError` and the like when the model fails.
    """
    import uvloop

    from edgecloud.http.server import listen
    from edgecloud.log_lines import configure_logging

    require_key_beyond_loopback(settings)
    sockets = listen(settings.server.host, settings.pool_server.port)
    configure_logging(settings.log_level, secrets=settings.server.all_keys, as_json=log_json)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, sockets, build))


async def _serve(settings: Settings, sockets: Sequence[socket.socket], build: Build | None) -> None:
    from edgecloud.http.drain import Drain
    from edgecloud.http.server import Server, url_of

    from ...pool.server import create_app

    engine = await asyncio.to_thread(build or _open, settings)
    try:
        # One token, so that 'serves' is true and a model that can't run is told at once.
        await engine.warm_up()
        url, drain = url_of(sockets), Drain()
        app = create_app(engine, _door(settings.server), drain=drain)
        server = Server(
            app,
            drain,
            drain_s=settings.server.drain_s,
            ready=lambda: _announce(engine, url, has_key=bool(settings.server.all_keys)),
        )
        await server.serve(list(sockets))
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await engine.aclose()


def _mute_teardown() -> None:
    """Triton's bindings print thirty lines about what Python's end leaves behind, after the last of ours."""
    if "triton" in sys.modules:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _open(settings: Settings) -> PoolEngine:
    try:
        from ...pool.open import open_engine
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        raise ConfigError(
            f"Serving a pool needs {error.name}, which is not installed: in a checkout of edgecloud, "
            "`pip install '.[pool]'` brings it (docs/pool.md tells more)."
        ) from None
    return open_engine(settings)


def _door(server: ServerSettings) -> ServerSettings:
    """Beyond loopback clients know this machine by its name, and a key is asked for whatever the name."""
    if not server.all_keys:
        return server
    return server.model_copy(update={"allowed_hosts": (*server.allowed_hosts, socket.gethostname())})


def _announce(engine: PoolEngine, url: str, *, has_key: bool) -> None:
    config = engine.config
    key = " with your key" if has_key else ""
    click.echo(
        f"edgecloud serves {engine.text.name} on {engine.facts.device} at {url}/v1{key}: "
        f"{config.num_slots} tokens of context for all requests together, {config.max_tokens} for one. "
        "Ctrl-C stops it.",
        err=True,
    )


def _overrides(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags as settings; a flag that was not given is None."""
    doors = {"host": "host", "api_key": "api_keys", "allowed_host": "allowed_hosts", "drain": "drain_s"}
    keys = {name: f"server__{key}" for name, key in doors.items()} | {"log_level": "log_level"}
    return {
        keys.get(name, f"pool_server__{name}"): None if value == () else value
        for name, value in flags.items()
    }
