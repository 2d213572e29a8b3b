"""Chat templates come with model files, so they run in a sandbox that also bounds their work and memory.

jinja2's `ImmutableSandboxedEnvironment` keeps a template from reaching Python. It does not keep one from
looping for ever or from building a string of gigabytes: here every loop turn, call and operator that can grow
a value is counted, and a render that goes past its budget ends in `TemplateLimit`.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, Template, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 1 << 20  # characters of a template
MAX_STEPS = 250_000  # loop turns and calls of one render, for a short conversation
MAX_SECONDS = 20.0
_MAX_CHARS = 1 << 26  # characters made by one render, besides what grows with its input
_MAX_COUNT = 1_000_000  # the largest number a call may be given
_MAX_WIDTH = 256  # the widest padding or indent
_WIDE_FORMAT = re.compile(r"%[-+ #0.\d]*(?:\*|\d{5})|\{[^{}]*(?:\{|:[^{}]*\d{5})")


class TemplateLimit(Exception):
    """A template did more work than any chat template needs."""


class TemplateRefusal(Exception):
    """The template itself called `raise_exception`; the message is its own."""


class _Budget:
    """What one render may still do. `input_chars` lets long conversations have more characters."""

    def __init__(self, input_chars: int, max_steps: int) -> None:
        self._steps = max_steps
        self._chars = _MAX_CHARS + 64 * input_chars
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self, chars: int = 0) -> None:
        self._steps -= 1
        self._chars -= chars
        if self._steps < 0:
            raise TemplateLimit("it runs too long")
        if self._chars < 0:
            raise TemplateLimit("it builds too much text")
        if self._steps % 1024 == 0 and time.monotonic() > self._deadline:
            raise TemplateLimit("it runs too long")

    def check_size(self, size: int) -> None:
        if size > self._chars:
            raise TemplateLimit("it builds too much text")


_budget: ContextVar[_Budget | None] = ContextVar("template_budget", default=None)


def _current() -> _Budget:
    """The budget of the render that runs; constants folded while compiling get a small one."""
    return _budget.get() or _Budget(0, 10_000)


def compile_template(source: str) -> Template:
    """Compile once, render often. Raises `TemplateLimit`, jinja2's `TemplateError`, or `RecursionError`."""
    if len(source) > MAX_SOURCE:
        raise TemplateLimit(f"it is longer than {MAX_SOURCE} characters")
    environment = _environment()
    tree: nodes.Template = _BoundLoops().visit(environment.parse(source))
    tree.set_environment(environment)
    return environment.from_string(tree)


def render(template: Template, variables: Mapping[str, Any], *, input_chars: int, max_steps: int) -> str:
    """The text of a compiled template. Raises whatever the template raises, and `TemplateLimit`."""
    budget = _Budget(input_chars, max_steps)
    token = _budget.set(budget)
    try:
        pieces: list[str] = []
        for piece in template.generate(variables):
            budget.step(len(piece))
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _budget.reset(token)


class _Counted:
    """An iterable whose every turn is paid for. `chars` is the fixed text that one turn writes."""

    def __init__(self, iterable: Iterable[Any], chars: int) -> None:
        self._iterable = iterable
        self._chars = chars

    def __iter__(self) -> Iterator[Any]:
        budget = _current()
        for item in self._iterable:
            budget.step(self._chars)
            yield item

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # a TypeError tells jinja2 that there is no length


class _BoundLoops(NodeTransformer):
    """Puts a counter into every loop, and a size check into every `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        fixed = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.iter = _filter(node.iter, "_counted", nodes.Const(fixed))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concatenated")


def _filter(value: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    for argument in arguments:
        argument.set_lineno(value.lineno)
    return nodes.Filter(value, name, list(arguments), [], None, None, lineno=value.lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks an answer for training; here it means its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "+", "%"})
    _unsafe_names = frozenset({"translate", "maketrans", "format_map", "expandtabs"})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in self._unsafe_names and super().is_safe_attribute(obj, attr, value)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _check_arguments(args, kwargs)
        if isinstance(__obj, LoopContext) and args:
            args = (_Counted(args[0], 0), *args[1:])
        name, owner = getattr(__obj, "__name__", ""), getattr(__obj, "__self__", None)
        if name == "format":
            _check_format(str(getattr(getattr(__obj, "__wrapped__", None), "__self__", "")))
        elif isinstance(owner, str):
            _check_growth(name, owner, args)
        return _paid(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator in ("*", "**"):
            _current().check_size(_product_size(operator, left, right))
        elif operator == "+" and isinstance(left, Sequence) and isinstance(right, Sequence):
            _current().check_size(len(left) + len(right))
        return _paid(super().call_binop(context, operator, left, right))


def _product_size(operator: str, left: Any, right: Any) -> int:
    """About how large `left * right` or `left ** right` is: elements of a sequence, bits of a number."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Sequence) and isinstance(other, int):
            return len(one) * other
    if isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
    return 0


def _paid(value: Any) -> Any:
    _current().step(len(value) if isinstance(value, str | list | tuple) else 0)
    return value


def _check_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], most: int = _MAX_COUNT) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > most:
            raise TemplateLimit("it asks for too large a number")


def _check_format(text: str) -> None:
    """Refuse widths that make megabytes of padding: five digits, or taken from a value (`%*d`, `{:{w}}`)."""
    if _WIDE_FORMAT.search(text):
        raise TemplateLimit("it formats too wide")


def _check_growth(name: str, text: str, args: Sequence[Any]) -> None:
    """Refuse the string methods that multiply before they would."""
    if name == "replace" and len(args) > 1:
        _current().check_size(len(text) + text.count(str(args[0])) * len(str(args[1])))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _current().check_size(sum(len(str(item)) + len(text) for item in args[0]))
    elif name in ("center", "ljust", "rjust", "zfill"):
        _check_arguments(args, {}, _MAX_WIDTH)


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with its arguments checked and its result paid for."""
    # The environment or the context comes first where it asks for one.
    num_hidden = 1 if hasattr(function, "jinja_pass_arg") else 0
    most = _MAX_WIDTH if name in ("indent", "center", "tojson") else _MAX_COUNT

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        value, *rest = args[num_hidden:] or (None,)
        _check_arguments(rest, kwargs, most)
        if name in ("replace", "format"):
            text = str(value)
            _check_growth(name, text, rest)
            if name == "format":
                _check_format(text)
        elif name == "join" and isinstance(value, list | tuple):
            _check_growth(name, str(rest[0]) if rest else str(kwargs.get("d", "")), [value])
        return _paid(function(*args, **kwargs))

    return checked


def _concatenated(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _current().check_size(sum(map(len, texts)))
    return "".join(texts)


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > _MAX_COUNT:
        raise TemplateLimit("it counts too far")
    return numbers


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it, not HTML-escaped as jinja2's own."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _pay_output(value: Any) -> Any:
    _current().step(len(value) if isinstance(value, str) else 0)
    return value


@functools.cache
def _environment() -> Environment:
    environment = _BoundedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_pay_output,
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    environment.filters["tojson"] = to_json
    environment.filters = {name: _guarded(name, function) for name, function in environment.filters.items()}
    environment.filters |= {"_counted": _Counted, "_concatenated": _concatenated}
    environment.globals.pop("lipsum")
    environment.globals |= {
        "range": _range,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment
