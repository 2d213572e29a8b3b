"""What a request's headers ask for beside its body: time, mode, privacy, freshness."""

from __future__ import annotations

import math
from typing import Any, get_args

from edgecloud.errors import BadRequest
from edgecloud.http.asgi import Scope, header
from edgecloud.types import Mode

DEADLINE = "x-request-deadline-ms"
MODE = "x-edgecloud-mode"
PRIVATE = "x-edgecloud-private"
FRESH = "x-edgecloud-fresh"
CACHE = "x-edgecloud-cache"

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def asked_of(scope: Scope) -> dict[str, Any]:
    """The fields of a `ChatRequest` that the headers give.

    `x-request-deadline-ms` is milliseconds for the whole answer. Raises `BadRequest` for a value that can't
    be one.
    """
    return {
        "deadline_s": _deadline_s(scope),
        "mode": _mode(scope),
        # Whatever else it says than no, privacy was meant.
        "private": (header(scope, PRIVATE.encode()) or "").strip().lower() not in _NO,
        "fresh": _flag(scope, FRESH) or "no-cache" in _cache_control(scope),
        "cache": _cache(scope),
    }


def _cache(scope: Scope) -> bool | None:
    """Whether kept answers may be given and this one kept; None where the request doesn't say."""
    if "no-store" in _cache_control(scope):
        return False
    return None if header(scope, CACHE.encode()) is None else _flag(scope, CACHE)


def _cache_control(scope: Scope) -> list[str]:
    return [part.strip().lower() for part in (header(scope, b"cache-control") or "").split(",")]


def _deadline_s(scope: Scope) -> float | None:
    value = header(scope, DEADLINE.encode())
    if value is None:
        return None
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds < 1e10:
        raise BadRequest(f"The header {DEADLINE} must be a number of milliseconds above 0.")
    return milliseconds / 1000


def _mode(scope: Scope) -> Mode:
    value = (header(scope, MODE.encode()) or "auto").strip().lower()
    for mode in get_args(Mode):
        if mode == value:
            chosen: Mode = mode
            return chosen
    raise BadRequest(f"The header {MODE} must be one of {', '.join(get_args(Mode))}.")


def _flag(scope: Scope, name: str) -> bool:
    value = (header(scope, name.encode()) or "").strip().lower()
    if value in _YES:
        return True
    if value in _NO:
        return False
    raise BadRequest(f"The header {name} must be true or false.")
