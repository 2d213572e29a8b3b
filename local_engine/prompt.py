"""A request's prompt as token ids, rendered by the model's template where it is a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgecloud.errors import BadRequest
from edgecloud.types import ChatRequest, Tool

if TYPE_CHECKING:
    from .llama import Model
    from .loaded import LoadedModel


def tokenize_prompt(loaded: LoadedModel, request: ChatRequest) -> tuple[list[int], str]:
    """The prompt's token ids, and for a chat the end of its text."""
    model = loaded.model
    if isinstance(request.prompt, tuple):
        check_ids(model, request.prompt, "prompt")
        ids, tail = list(request.prompt), ""
    elif request.prompt is not None:
        ids, tail = model.tokenize(request.prompt, parse_special=True), ""
        if ids and model.adds_bos and ids[0] != model.bos:
            ids.insert(0, model.bos)
    else:
        ids, tail = _render(loaded, request)
    if not ids:
        raise BadRequest("The prompt is empty.", param="messages" if request.is_chat else "prompt")
    return ids, tail


def _render(loaded: LoadedModel, request: ChatRequest) -> tuple[list[int], str]:
    model, template = loaded.model, loaded.template
    if template is None:
        raise BadRequest(
            "This model has no chat template: use completions, or name a file in local.chat_template.",
            param="messages",
        )
    if any(message.images for message in request.messages):
        raise BadRequest("Image input is not supported by this model.", param="messages")
    tools = offered_tools(loaded, request)
    segments = template.render(
        request.messages, tools=tools, continue_final=request.continue_final, extra=request.template_kwargs
    )
    ids = [model.bos] if model.adds_bos and not template.has_bos(segments) else []
    for segment in segments:
        ids += model.tokenize(segment.text, parse_special=segment.special)
    return ids, segments[-1].text[-256:] if segments else ""


def offered_tools(loaded: LoadedModel, request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the template is to tell of."""
    if not request.tools or request.tool_choice == "none":
        return ()
    if loaded.template is None or not loaded.template.supports_tools:
        raise BadRequest(
            "This model's chat template knows no tools: send none, or tool_choice 'none'.", param="tools"
        )
    return request.tools


def check_ids(model: Model, ids: Sequence[int], param: str) -> None:
    for token in ids:
        if not 0 <= token < model.n_vocab:
            raise BadRequest(
                f"{param} holds token {token}, but the vocabulary of this model has {model.n_vocab} tokens.",
                param=param,
            )
