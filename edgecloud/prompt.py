"""What a request is to one model: its prompt as token ids, what the answer must match, and who reads it."""

from __future__ import annotations

from dataclasses import replace

from edgecloud.errors import BadRequest
from edgecloud.output import OutputParser
from edgecloud.templates import ChatTemplate
from edgecloud.types import ChatRequest, Constraint, Tool
from edgecloud.vocabulary import Vocabulary, check_ids

# As much of the prompt's end as a parser looks at to see whether the answer begins inside of markup.
TAIL = 256


def tokenize_prompt(
    vocabulary: Vocabulary, template: ChatTemplate | None, request: ChatRequest
) -> tuple[list[int], str]:
    """The prompt's token ids, never none, and for a chat the end of its text. Raises `BadRequest`."""
    if isinstance(request.prompt, tuple):
        check_ids(vocabulary, request.prompt, "prompt")
        ids, tail = list(request.prompt), ""
    elif request.prompt is not None:
        ids, tail = vocabulary.tokenize(request.prompt, parse_special=True), ""
        if ids and vocabulary.adds_bos and ids[0] != vocabulary.bos:
            ids.insert(0, vocabulary.bos)
    else:
        ids, tail = _render(vocabulary, template, request)
    if not ids:
        raise BadRequest("The prompt is empty.", param="messages" if request.is_chat else "prompt")
    return ids, tail


def _render(
    vocabulary: Vocabulary, template: ChatTemplate | None, request: ChatRequest
) -> tuple[list[int], str]:
    if template is None:
        raise BadRequest(
            "This model has no chat template: use completions, or name a file in local.chat_template.",
            param="messages",
        )
    if any(message.images for message in request.messages):
        raise BadRequest("Image input is not supported by this model.", param="messages")
    segments = template.render(
        request.messages,
        tools=offered_tools(template, request),
        continue_final=request.continue_final,
        extra=request.template_kwargs,
    )
    ids = [vocabulary.bos] if vocabulary.adds_bos and not template.has_bos(segments) else []
    for segment in segments:
        ids += vocabulary.tokenize(segment.text, parse_special=segment.special)
    return ids, segments[-1].text[-TAIL:] if segments else ""


def offered_tools(template: ChatTemplate | None, request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the template is to tell of. Raises `BadRequest` where it can't."""
    if not request.tools or request.tool_choice == "none":
        return ()
    if template is None or not template.supports_tools:
        raise BadRequest(
            "This model's chat template knows no tools: send none, or tool_choice 'none'.", param="tools"
        )
    return request.tools


def constraint_on(template: ChatTemplate | None, request: ChatRequest) -> Constraint | None:
    """What the answer must match: calls of the request's tools where it forces one, else what it asks for.

    Raises `BadRequest` for tools that the template can't tell of.
    """
    tools = offered_tools(template, request) if request.is_chat else ()
    if tools and template is not None:
        forced = template.tool_constraint(tools, request.tool_choice, request.parallel_tool_calls)
        if forced is not None:
            return replace(forced, param="tools")
    return request.constraint


def output_parser(template: ChatTemplate | None, request: ChatRequest, tail: str) -> OutputParser | None:
    """What finds reasoning and tool calls in an answer behind a prompt that ends in `tail`; None outside of
    chats.
    """
    if not request.is_chat or template is None:
        return None
    return template.parser(bool(offered_tools(template, request)), tail)
