"""`edgecloud pool`: serving models from this machine's GPU, and the servers that this machine may use."""

from __future__ import annotations

import click

from .pool_serve import serve


@click.group()
def pool() -> None:
    """Serve a model to other machines, and manage the servers that this one uses."""


pool.add_command(serve)
