"""The OpenAI model list, with what clients of Anthropic, llama.cpp, vLLM and OpenRouter look for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from edgecloud.types import ModelCard


def body(card: ModelCard) -> dict[str, Any]:
    """One model; `context_length` is in tokens and left out where it is unknown."""
    result: dict[str, Any] = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.engine or "edgecloud",
        # Anthropic's: neither SDK minds the other's fields.
        "type": "model",
        "display_name": card.id,
        "created_at": datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "kind": card.kind,
        "aliases": list(card.aliases),
        "loaded": card.loaded,
    }
    if card.kind != "embedding":
        # What others of ours look for: a request with the field of that name is not begun anew here.
        result["continue_final_message"] = card.continues
    if card.context is not None:
        # OpenRouter's name and vLLM's for the same number.
        result |= {
            "context_length": card.context,
            "max_model_len": card.context,
        }
    meta = {"n_ctx": card.context, "n_params": card.parameters}
    if any(meta.values()):
        # llama-server's.
        result["meta"] = {name: value for name, value in meta.items() if value}
    if card.detail:
        result["description"] = card.detail
    return result


def list_body(cards: Iterable[ModelCard]) -> dict[str, Any]:
    """The whole list in one page."""
    data = [body(card) for card in cards]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "has_more": False, "first_id": first, "last_id": last}
