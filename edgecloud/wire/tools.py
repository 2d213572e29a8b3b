"""Function tools and `tool_choice`, checked against each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgecloud.errors import BadRequest
from edgecloud.types import NamedTool, Tool, ToolChoice

from .fields import Fields

MAX_NAME = 128


def tools(body: Fields) -> tuple[Tool, ...]:
    """OpenAI chat's nested form: `{"type": "function", "function": {"name", "parameters", …}}`."""
    result = []
    for item in body.objects("tools"):
        if item.choice("type", "function") is None:
            item.require("type")
        result.append(function_tool(item.inner("function"), "parameters"))
    return distinct(result, "tools")


def function_tool(function: Fields, parameters: str) -> Tool:
    """A tool whose JSON schema is under the key `parameters`."""
    return Tool(
        name=function.name("name", longest=MAX_NAME),
        description=function.text("description") or "",
        parameters=function.json(parameters) or {},
        strict=function.flag("strict") or False,
    )


def distinct(tools: Iterable[Tool], param: str) -> tuple[Tool, ...]:
    result = tuple(tools)
    if len({tool.name for tool in result}) < len(result):
        raise BadRequest(f"{param} names a function twice.", param=param)
    return result


def tool_choice(body: Fields, tools: tuple[Tool, ...]) -> ToolChoice:
    """`none`, `auto`, `required`, or one function by name (chat nests the name, Responses does not)."""
    value: Any = body.get("tool_choice")
    if value is None:
        return "auto"
    if isinstance(value, str):
        if value == "auto":
            return "auto"
        if value == "none":
            return "none"
        if value == "required":
            if not tools:
                raise body.wrong("tool_choice", "is 'required' but there are no tools")
            return "required"
        raise body.wrong("tool_choice", "must be none, auto, required or an object that names a function")
    choice = Fields(value, body.param("tool_choice"))
    choice.require("type")
    choice.choice("type", "function")
    return named(choice.object("function") or choice, tools)


def named(choice: Fields, tools: tuple[Tool, ...]) -> NamedTool:
    """The function that `choice.name` forces; it must be one of the tools."""
    name = choice.name("name", longest=MAX_NAME)
    if all(tool.name != name for tool in tools):
        raise choice.wrong("name", "is not one of the functions in tools")
    return NamedTool(name)
