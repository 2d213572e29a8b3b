"""OpenAI embeddings: a body to an `EmbedRequest`, and vectors to a body as floats or base64."""

from __future__ import annotations

import base64
import struct
from typing import Any, Literal

from edgecloud.types import EmbedRequest, EmbedResult

from . import fields as read
from .fields import Fields

MAX_INPUTS = 2048
Encoding = Literal["float", "base64"]


def parse(body: Any) -> tuple[EmbedRequest, Encoding]:
    """The texts or token ids to embed and how the vectors shall be written. Raises `BadRequest`."""
    fields = Fields(body)
    fields.text("user")
    request = EmbedRequest(
        inputs=tuple(read.inputs(fields.require("input"), "input", MAX_INPUTS)),
        model="auto" if not fields.has("model") else fields.name("model"),
        dimensions=fields.integer("dimensions", 1, 2**16),
    )
    return request, "base64" if fields.choice("encoding_format", "float", "base64") == "base64" else "float"


def body(result: EmbedResult, model: str, encoding: Encoding) -> dict[str, Any]:
    """One `embedding` per input, in order; base64 is of little-endian float32.

    `model` is the name the client sent.
    """
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(vector) if encoding == "base64" else list(vector),
            }
            for index, vector in enumerate(result.vectors)
        ],
        "model": result.model if model == "auto" else model,
        "usage": {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens},
    }


def _base64(vector: tuple[float, ...]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
