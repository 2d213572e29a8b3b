"""What an answer must match, as the request says: a schema, a pattern, calls of its tools, a GBNF grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgecloud.types import ChatRequest

from .prompt import offered_tools

if TYPE_CHECKING:
    from .loaded import LoadedModel
    from .sampler import TokenGrammar


def make_grammar(loaded: LoadedModel, request: ChatRequest) -> TokenGrammar | None:
    """The grammar of a request, or None if it may be answered with anything.

    Raises `BadRequest` when it can't be enforced.
    """
    from .llama import Grammar

    constraint = request.constraint
    tools = offered_tools(loaded, request) if request.is_chat else ()
    if tools and loaded.template is not None:
        forced = loaded.template.tool_constraint(tools, request.tool_choice, request.parallel_tool_calls)
        if forced is not None:
            constraint = replace(forced, param="tools")
    if constraint is None:
        return None
    param = constraint.param
    match constraint.kind:
        case "json":
            return loaded.schemas.schema('{"type": "object"}', param=param)
        case "schema":
            return loaded.schemas.schema(constraint.source, param=param)
        case "regex":
            return loaded.schemas.regex(constraint.source, param=param)
        case "calls":
            return loaded.schemas.calls(constraint.source, constraint.schemas, param=param)
        case "grammar":
            return Grammar(loaded.model, constraint.source, param=param)
