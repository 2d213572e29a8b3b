"""A request's prompt as token ids, by what is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgecloud import prompt
from edgecloud.types import ChatRequest, Tool
from edgecloud.vocabulary import check_ids

if TYPE_CHECKING:
    from .loaded import LoadedModel

__all__ = ["check_ids", "offered_tools", "tokenize_prompt"]


def tokenize_prompt(loaded: LoadedModel, request: ChatRequest) -> tuple[list[int], str]:
    """The prompt's token ids, and for a chat the end of its text."""
    return prompt.tokenize_prompt(loaded.model, loaded.template, request)


def offered_tools(loaded: LoadedModel, request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the template is to tell of."""
    return prompt.offered_tools(loaded.template, request)
