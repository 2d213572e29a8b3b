"""The error envelopes of OpenAI and Anthropic."""

from __future__ import annotations

from typing import Any

from edgecloud.errors import EdgeCloudError

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def openai_error(error: EdgeCloudError) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code", …extra}}`, for a body or for a frame of a stream."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
            **error.extra,
        }
    }


def anthropic_error(error: EdgeCloudError, request_id: str) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`, for a body or for `event: error`."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    return {
        "type": "error",
        "error": {"type": _ANTHROPIC_TYPES.get(error.status, default), "message": error.message},
        "request_id": request_id,
    }
