"""OpenTelemetry spans, where its SDK is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any


@cache
def _tracer() -> Any:
    """The OpenTelemetry tracer, or None without the SDK."""
    try:
        import opentelemetry.sdk  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("edgecloud")


@contextlib.contextmanager
def span(name: str, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[dict[str, str | int | float]]:
    """A server span, child of the caller's by its `traceparent` header; it ends with the attributes put into
    the yielded dict. Nothing without the SDK.
    """
    attributes: dict[str, str | int | float] = {}
    tracer = _tracer()
    if tracer is None:
        yield attributes
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    carrier = {key.decode("latin-1"): value.decode("latin-1") for key, value in headers}
    current = tracer.start_span(name, context=extract(carrier), kind=SpanKind.SERVER)
    try:
        yield attributes
    finally:
        current.set_attributes(attributes)
        current.end()
