"""The order of the layers at the door, written down once."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from edgecloud.http.access import Access
from edgecloud.http.answer import Door
from edgecloud.http.cors import Cors
from edgecloud.http.drain import DrainGate
from edgecloud.http.host import HostCheck
from edgecloud.http.keys import KeyCheck
from edgecloud.http.problem import Problems, raise_as_ours
from edgecloud.settings import ServerSettings


def guarded_app(door: Door, settings: ServerSettings, *, title: str, version: str) -> FastAPI:
    """An app without routes behind every check: only liveness is open, every fault has the envelope, every
    answer an id.
    """
    app = FastAPI(
        title=title,
        version=version,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: raise_as_ours},
    )
    # Each is put around those before it, so the innermost comes first.
    app.add_middleware(Problems)
    app.add_middleware(DrainGate, drain=door.drain)
    app.add_middleware(KeyCheck, keys=settings.all_keys)
    app.add_middleware(Cors, origins=settings.cors_origins)
    app.add_middleware(HostCheck, allowed=settings.allowed_hosts, bound=settings.host.split(","))
    app.add_middleware(Access, metrics=door.metrics)
    return app
