"""A model's chat template: messages in, the prompt's text out, whatever the template's habits are.

What a template can take (a system message, one later on, content in parts, tools, arguments as an object) is
found out once by rendering small conversations, so that messages are brought into a shape it takes and
nothing in them is lost.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from edgecloud.control_tokens import ControlTokens, Segment, unused_characters
from edgecloud.errors import BadRequest, ModelLoadError
from edgecloud.output import OutputParser, PlainText
from edgecloud.reasoning import CLOSE, OPEN, ReasoningParser
from edgecloud.sandbox import MAX_STEPS, TemplateLimit, TemplateRefusal, compile_template, render
from edgecloud.toolcalls import HERMES, LLAMA3, MISTRAL, PHI4, ToolCallParser, ToolMarkup, call_constraint
from edgecloud.turns import (
    calls_as_text,
    front_system,
    hoist_system,
    merge_runs,
    one_call_each,
    system_into_user,
)
from edgecloud.types import Constraint, Message, NamedTool, Tool, ToolCall, ToolChoice

__all__ = ["ChatTemplate", "Segment"]

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
_ROLES = frozenset({"system", "user", "assistant", "tool"})
_PROBE_STEPS = 50_000
_TURN_STEPS = 100  # what each message adds to a render's budget

Marker = Callable[..., str]


@dataclass(frozen=True, slots=True)
class _Habits:
    """What the template was found to take."""

    system: bool = True
    late_system: bool = True
    lone_system: bool = True
    parts: bool = False  # content as a list of parts
    no_tools_is_none: bool = True  # else the variable must be undefined
    tools: bool = False
    calls: bool = True
    arguments_as_text: bool = False
    content_is_none: bool = False  # of a message that only calls; else it must be text


class ChatTemplate:
    """One template, compiled once. Thread-safe: a render shares nothing.

    `control_tokens` are the spellings of the vocabulary's control tokens, which user text must not be able to
    forge. Raises `ModelLoadError` if the template is not valid.
    """

    def __init__(
        self, source: str, *, bos: str = "", eos: str = "", control_tokens: frozenset[str] = frozenset()
    ) -> None:
        self.bos = bos
        self._eos = eos
        self._source = source
        self._control = ControlTokens(control_tokens | {bos, eos})
        try:
            self._template = compile_template(source)
        except TemplateSyntaxError as error:
            raise ModelLoadError(
                f"The model's chat template is broken in line {error.lineno}: {error.message}."
            ) from error
        except (TemplateLimit, TemplateError) as error:
            raise ModelLoadError(f"The model's chat template cannot be used: {error}.") from error
        except (RecursionError, MemoryError, SyntaxError) as error:
            raise ModelLoadError("The model's chat template is nested too deeply.") from error
        self._habits = self._find_habits()
        self.family = _family(source)
        self._markup = _markup(source, self.family) if self._habits.tools else None
        self.markup_tokens = frozenset(
            token for token in control_tokens if token in _MARKUP_TEXTS and token in source
        )

    @property
    def supports_tools(self) -> bool:
        """Whether the template tells the model of tools, and writes calls in a way we can read."""
        return self._markup is not None

    @functools.cached_property
    def reasoning(self) -> bool:
        """Whether the model thinks first: its template knows of `<think>`."""
        return OPEN in self._source or CLOSE in self._source

    def has_bos(self, segments: Sequence[Segment]) -> bool:
        """Whether the rendered prompt already begins with BOS, so that it must not be added again."""
        return bool(self.bos and segments and segments[0].special and segments[0].text.startswith(self.bos))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        extra: Mapping[str, Any] = {},
    ) -> tuple[Segment, ...]:
        """The prompt, in one segment unless the messages spell control tokens.

        With `continue_final` the last message, an assistant's, is left open for more and there is no
        generation prompt. `extra` are more variables for the template. Raises `BadRequest` if the template
        refuses the messages, with its own words.
        """
        if _RESERVED & extra.keys():
            raise BadRequest(
                f"template_kwargs may not set {sorted(_RESERVED & extra.keys())[0]!r}.",
                param="chat_template_kwargs",
            )
        if continue_final:
            _check_continuable(messages)
        first_error: BadRequest | None = None
        for shape in self._shapes(messages):
            try:
                return self._render(
                    shape, tools, add_generation_prompt and not continue_final, continue_final, extra
                )
            except _Refused as error:
                first_error = first_error or error
        raise first_error or BadRequest("There are no messages.", param="messages")

    def tool_constraint(self, tools: Sequence[Tool], choice: ToolChoice, parallel: bool) -> Constraint | None:
        """The grammar that makes the answer a tool call, for `required` or a named tool; else None."""
        if choice == "auto" or choice == "none":
            return None
        if self._markup is None:
            raise BadRequest(
                "This model's chat template has no tool calls to enforce: use tool_choice 'auto' or 'none'.",
                param="tool_choice",
            )
        if isinstance(choice, NamedTool):
            tools = [tool for tool in tools if tool.name == choice.name]
            parallel = False
        if not tools:
            asked = f"names {choice.name!r}" if isinstance(choice, NamedTool) else "is 'required'"
            raise BadRequest(f"tool_choice {asked}, which is not among the tools.", param="tool_choice")
        try:
            return call_constraint(self._markup, tools, parallel=parallel, thinks=self.reasoning)
        except RecursionError:
            raise BadRequest("The tools are nested too deeply.", param="tools") from None

    def parser(self, tools_on: bool, prompt_tail: str) -> OutputParser:
        """A fresh parser for one answer; `prompt_tail`, the end of the prompt, may have opened a thought."""
        answer: OutputParser = ToolCallParser(self._markup) if tools_on and self._markup else PlainText()
        opened = prompt_tail.rstrip().endswith(OPEN)
        return ReasoningParser(answer, opened=opened) if opened or self.reasoning else answer

    # ---------------------------------------------------------------------------------------------- rendering

    def _shapes(self, messages: Sequence[Message]) -> Iterator[tuple[Message, ...]]:
        """The messages as the template should take them; for when it refuses, with more and more joined."""
        shape = front_system(messages)
        if not self._habits.late_system:
            shape = hoist_system(shape)
        if not self._habits.calls:
            shape = calls_as_text(shape)
        if not (self._habits.system and (self._habits.lone_system or len(shape) > 1)):
            shape = system_into_user(shape)
        tried: list[tuple[Message, ...]] = []
        for form in (
            shape,
            merged := merge_runs(shape),
            hoisted := merge_runs(hoist_system(merged)),
            merge_runs(system_into_user(hoisted)),
            one_call_each(hoisted),
        ):
            if form not in tried:
                tried.append(form)
                yield form

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        add_generation_prompt: bool,
        continue_final: bool,
        extra: Mapping[str, Any],
    ) -> tuple[Segment, ...]:
        texts: list[str] = []
        risky = False

        def collect(text: str, *, whole: bool = False) -> str:
            nonlocal risky
            texts.append(text)
            risky = risky or bool(self._control.places(text, whole=whole))
            return text

        try:
            variables = self._variables(messages, tools, extra, collect)
        except RecursionError:
            raise BadRequest(
                "The tools or template arguments are nested too deeply.", param="tools"
            ) from None
        mark, end = unused_characters([self._source, self.bos, self._eos, *texts], 2)
        if risky:
            variables = self._variables(
                messages, tools, extra, lambda text, whole=False: self._control.mark(text, mark, whole=whole)
            )
        if continue_final:
            final = variables["messages"][-1]
            final["content"] = _append(final["content"], end)
        variables["add_generation_prompt"] = add_generation_prompt
        text = self._run(variables, sum(map(len, texts)), MAX_STEPS + _TURN_STEPS * len(messages))
        if continue_final:
            if text.count(end) != 1:
                raise BadRequest(
                    "This model's chat template cannot leave the last message open; send it without "
                    "continue_final_message.",
                    param="continue_final_message",
                )
            text = text[: text.index(end)]
        return self._control.segments(text, mark)

    def _variables(
        self, messages: Sequence[Message], tools: Sequence[Tool], extra: Mapping[str, Any], guard: Marker
    ) -> dict[str, Any]:
        none_is_passed = self._habits.no_tools_is_none
        names = {call.id: call.name for message in messages for call in message.tool_calls}
        return {
            "documents": None,
            **_guarded(dict(extra), guard),
            "messages": [self._dict(message, names, guard) for message in messages],
            **(
                {"tools": [_tool_dict(tool, guard) for tool in tools] or None}
                if tools or none_is_passed
                else {}
            ),
            "bos_token": self.bos,
            "eos_token": self._eos,
        }

    def _dict(self, message: Message, names: Mapping[str, str], guard: Marker) -> dict[str, Any]:
        role = message.role if message.role in _ROLES else guard(message.role, whole=True)
        content: Any = guard(message.content)
        if self._habits.content_is_none and message.tool_calls and not content:
            content = None
        elif self._habits.parts:
            content = [{"type": "text", "text": content}]
        result: dict[str, Any] = {"role": role, "content": content}
        name = message.name or names.get(message.tool_call_id or "")
        if name:
            result["name"] = guard(name, whole=True)
        if message.tool_call_id:
            result["tool_call_id"] = guard(self._call_id(message.tool_call_id))
        if message.reasoning:
            result["reasoning_content"] = guard(message.reasoning)
        if message.tool_calls:
            result["tool_calls"] = [
                {
                    "id": guard(self._call_id(call.id)),
                    "type": "function",
                    "function": {
                        "name": guard(call.name),
                        "arguments": self._arguments(call, guard),
                    },
                }
                for call in message.tool_calls
            ]
        return result

    def _arguments(self, call: ToolCall, guard: Marker) -> Any:
        if not self._habits.arguments_as_text:
            try:
                arguments = json.loads(call.arguments or "{}")
            except (ValueError, RecursionError):
                arguments = None
            if isinstance(arguments, dict):
                return _guarded(arguments, guard)
        return guard(call.arguments)

    def _call_id(self, call_id: str) -> str:
        """The id; for Mistral's templates, which take only nine letters and digits, a stand-in if need be."""
        if MISTRAL.open not in self._source or (
            len(call_id) == 9 and call_id.isascii() and call_id.isalnum()
        ):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]

    def _run(self, variables: Mapping[str, Any], input_chars: int, max_steps: int) -> str:
        try:
            return render(self._template, variables, input_chars=input_chars, max_steps=max_steps)
        except TemplateRefusal as error:
            raise _Refused(
                f"The model's chat template refuses these messages: {error}", param="messages"
            ) from error
        except SecurityError as error:
            raise BadRequest(
                "The model's chat template tries to leave its sandbox and was stopped."
            ) from error
        except (TemplateLimit, RecursionError, MemoryError) as error:
            raise BadRequest(
                f"The model's chat template was stopped: {str(error) or 'it nests too deeply'}."
            ) from error
        except Exception as error:
            # A template is a program of somebody else's: it may raise anything, and that is never our bug.
            raise _Refused(
                f"The model's chat template cannot render these messages: {str(error)[:200]}",
                param="messages",
            ) from error

    # ------------------------------------------------------------------------------------------------ probing

    def _find_habits(self) -> _Habits:
        """Render small conversations with known words, and see which come out."""
        user, answer = Message("user", "zqUser"), Message("assistant", "zqAnswer")
        system, late = Message("system", "zqSystem"), Message("system", "zqLate")
        tool = Tool("zqTool", "zqAbout", {"type": "object", "properties": {}})
        basics = [_Habits(parts=p, no_tools_is_none=n) for p in (False, True) for n in (True, False)]
        taken = (
            habits
            for turns in ([system, user], [user])
            for habits in basics
            if "zqUser" in (self._try(turns, (), habits) or "")
        )
        habits = next(taken, _Habits())
        with_late = self._try([system, user, answer, late, user], (), habits) or ""
        habits = replace(
            habits,
            system="zqSystem" in (self._try([system, user], (), habits) or ""),
            late_system="zqSystem" in with_late and "zqLate" in with_late,
            lone_system="zqSystem" in (self._try([system], (), habits) or ""),
            tools="zqTool" in (self._try([user], (tool,), habits) or ""),
        )
        call = ToolCall("zqCall0001", "zqName", '{"zqKey": "zqValue"}')
        calling = [user, Message("assistant", "", tool_calls=(call,))]
        for written in (habits, replace(habits, arguments_as_text=True)):
            # Python's way to print an object, with single quotes, is no way to write arguments.
            shown = self._try(calling, (tool,), written) or ""
            if "zqValue" in shown and "'zqValue'" not in shown:
                with_none = self._try(calling, (tool,), replace(written, content_is_none=True)) or "None"
                return replace(written, content_is_none="None" not in with_none)
        return replace(habits, calls=False)

    def _try(self, messages: Sequence[Message], tools: Sequence[Tool], habits: _Habits) -> str | None:
        """What the template makes of this with these habits; None if it refuses."""
        self._habits = habits
        variables = self._variables(messages, tools, {}, lambda text, whole=False: text)
        variables["add_generation_prompt"] = True
        try:
            return self._run(variables, 0, _PROBE_STEPS)
        except BadRequest:
            return None


class _Refused(BadRequest):
    """The template did not take the messages in this shape; another may do."""


# ---------------------------------------------------------------------------------------------------- helpers


def _check_continuable(messages: Sequence[Message]) -> None:
    if not messages or messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise BadRequest(
            "continue_final_message needs an assistant message without tool calls at the end.",
            param="continue_final_message",
        )


def _append(content: Any, text: str) -> Any:
    return content + text if isinstance(content, str) else [{**content[0], "text": content[0]["text"] + text}]


def _tool_dict(tool: Tool, guard: Marker) -> dict[str, Any]:
    function = {
        "name": guard(tool.name),
        "description": guard(tool.description),
        "parameters": _guarded(dict(tool.parameters) or {"type": "object", "properties": {}}, guard),
    }
    return {"type": "function", "function": function}


def _guarded(value: Any, guard: Marker) -> Any:
    """A copy of JSON-like data with every string guarded, keys too."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {
            guard(key) if isinstance(key, str) else key: _guarded(item, guard) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_guarded(item, guard) for item in value]
    return value


# --------------------------------------------------------------------------------------------------- families

_MARKUP_TEXTS = frozenset(
    {OPEN, CLOSE, HERMES.open, HERMES.close, PHI4.open, PHI4.close, LLAMA3.open, MISTRAL.open}
)


def _family(source: str) -> str:
    """What lineage of templates this is, by the marks it writes."""
    if "<|start_header_id|>" in source:
        return "llama3"
    if "[INST]" in source or MISTRAL.open in source:
        return "mistral"
    if "<start_of_turn>" in source:
        return "gemma"
    if "<｜" in source:
        return "deepseek"
    if "<|im_start|>" not in source:
        return "other"
    if HERMES.open not in source:
        return "chatml"
    return "qwen3" if OPEN in source or CLOSE in source else "hermes"


def _markup(source: str, family: str) -> ToolMarkup | None:
    """How this template's tool calls are written, if it is a way we know."""
    if MISTRAL.open in source:
        return None if "[ARGS]" in source else MISTRAL
    if HERMES.open in source:
        return None if "<function=" in source or "<arg_key>" in source else HERMES
    if PHI4.open in source:
        return PHI4
    return LLAMA3 if family == "llama3" else None
