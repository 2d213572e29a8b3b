"""A model's chat template: messages in, the prompt's text out, whatever the template's habits are.

What a template can take (a system message, one later on, content in parts, tools, arguments as an object) is
found out once by rendering small conversations, so that messages are brought into a shape it takes and
nothing in them is lost.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from edgecloud.control_tokens import ControlTokens, Segment, unused_characters
from edgecloud.errors import BadRequest, ConfigError, ModelLoadError
from edgecloud.folders import expanded
from edgecloud.output import OutputParser, PlainText
from edgecloud.reasoning import CLOSE, OPEN, ReasoningParser
from edgecloud.sandbox import MAX_STEPS, TemplateLimit, TemplateRefusal, compile_template, render
from edgecloud.template_variables import Guard, Habits, append_to_content, template_variables
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

__all__ = ["ChatTemplate", "Segment", "read_source"]

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
# Every template is given these in a shape that it takes; `developer` is the system's.
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_PROBE_STEPS = 50_000
_TURN_STEPS = 100  # what each message adds to a render's budget


def read_source(name: str, setting: str) -> str:
    """The text of the file that a setting names. Raises `ConfigError` where it can't be read."""
    try:
        return expanded(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{setting} can't be read: {error}. Name a text file, or remove the setting."
        ) from None


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
        self._check_roles(messages)
        if continue_final:
            _check_continuable(messages)
        errors: list[BadRequest] = []
        for shape in self._shapes(messages):
            try:
                return self._render(
                    shape, tools, add_generation_prompt and not continue_final, continue_final, extra
                )
            except _Refused as error:
                errors.append(error)
        raise errors[0]

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

    def _check_roles(self, messages: Sequence[Message]) -> None:
        """Refuse a role that the template does not name: it would be dropped, or be a typo written out."""
        for number, message in enumerate(messages):
            role = message.role
            if role not in _ROLES and not any(quote + role + quote in self._source for quote in "'\""):
                raise BadRequest(
                    f"messages[{number}].role is none that this model's chat template knows: "
                    "use system, user, assistant or tool.",
                    param=f"messages[{number}].role",
                )

    def _shapes(self, messages: Sequence[Message]) -> Iterator[tuple[Message, ...]]:
        """The messages as the template should take them, then other ways to say the same should it refuse."""
        shape = front_system(messages)
        if not self._habits.late_system:
            shape = hoist_system(shape)
        if not self._habits.calls:
            shape = calls_as_text(shape)
        if not (self._habits.system and (self._habits.lone_system or len(shape) > 1)):
            shape = system_into_user(shape)
        yield shape
        joined = merge_runs(shape)
        if joined != shape:
            yield joined
        single = one_call_each(joined)
        if single != joined:
            yield single

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
            append_to_content(variables["messages"][-1], end)
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
        self, messages: Sequence[Message], tools: Sequence[Tool], extra: Mapping[str, Any], guard: Guard
    ) -> dict[str, Any]:
        variables = template_variables(messages, tools, extra, self._habits, guard)
        return {**variables, "bos_token": self.bos, "eos_token": self._eos}

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

    def _find_habits(self) -> Habits:
        """Render small conversations with known words, and see which come out."""
        user, answer = Message("user", "zqUser"), Message("assistant", "zqAnswer")
        system, late = Message("system", "zqSystem"), Message("system", "zqLate")
        tool = Tool("zqTool", "zqAbout", {"type": "object", "properties": {}})
        short_ids = MISTRAL.open in self._source
        basics = [
            Habits(parts=parts, no_tools_is_none=none, short_ids=short_ids)
            for parts in (False, True)
            for none in (True, False)
        ]
        taken = (
            habits
            for turns in ([system, user], [user])
            for habits in basics
            if "zqUser" in (self._try(turns, (), habits) or "")
        )
        habits = next(taken, basics[0])
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

    def _try(self, messages: Sequence[Message], tools: Sequence[Tool], habits: Habits) -> str | None:
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


def _check_continuable(messages: Sequence[Message]) -> None:
    if not messages or messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise BadRequest(
            "continue_final_message needs an assistant message without tool calls at the end.",
            param="continue_final_message",
        )


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
