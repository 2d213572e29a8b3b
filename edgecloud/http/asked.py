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
CACHE_CONTROL = "cache-control"
HEADERS = (DEADLINE, MODE, PRIVATE, FRESH, CACHE, CACHE_CONTROL)

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
        **_kept(scope),
    }


def _kept(scope: Scope) -> dict[str, Any]:
    """What is said of kept answers, in our headers and in those of RFC 9111 for a request."""
    control = _cache_control(scope)
    cache = None if header(scope, CACHE.encode()) is None else _flag(scope, CACHE)
    max_age_s = _seconds(control.get("max-age"))
    if "only-if-cached" in control:
        cache = True
    if "no-store" in control:
        cache = False
    return {
        # No answer is that young.
        "fresh": _flag(scope, FRESH) or "no-cache" in control or max_age_s == 0,
        "cache": cache,
        "max_age_s": max_age_s,
        "only_kept": "only-if-cached" in control,
    }


def _cache_control(scope: Scope) -> dict[str, str]:
    parts = (part.partition("=") for part in (header(scope, CACHE_CONTROL.encode()) or "").split(","))
    return {name.strip().lower(): value.strip().strip('"') for name, _, value in parts}


def _seconds(value: str | None) -> float | None:
    """The delta-seconds of a directive; None where they are none, for who can't say it did not ask for it."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None


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
