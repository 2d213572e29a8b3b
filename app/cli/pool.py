"""`edgecloud pool`: serving models from this machine's GPU, and the servers that this machine may use."""

from __future__ import annotations

import click

from .group import ListingGroup
from .pool_entries import add, list_, reprice, rm
from .pool_serve import serve
from .pool_test import test


@click.group(cls=ListingGroup)
def pool() -> None:
    """Serve a model to other machines, and manage the servers that this one uses."""


for command in (serve, list_, add, test, rm, reprice):
    pool.add_command(command)
