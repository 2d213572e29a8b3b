"""Plain JSON responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from edgecloud.http.asgi import json_bytes


def json_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Status 200 with a JSON object."""
    return Response(json_bytes(body), headers=headers, media_type="application/json")
