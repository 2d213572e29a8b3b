"""What is set for one chat: system prompt, who answers, parameters, the pin that keeps it on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_args

from edgecloud.errors import BadRequest
from edgecloud.types import Mode, Sampling


@dataclass(frozen=True, slots=True)
class Preferences:
    """None and empty are the model's own defaults. `draft` is what was typed and not sent."""

    system: str = ""
    model: str = "auto"
    mode: Mode = "auto"
    private: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    draft: str = ""

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.min_p, seed=self.seed)

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> Preferences:
        """What a chat's notes say; what they say wrongly or another version wrote is left at its default."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = noted.get(field.name)
            if value is None:
                continue
            if field.name in PARAMETERS:
                try:
                    values[field.name] = PARAMETERS[field.name].read(str(value))
                except BadRequest:
                    continue
            elif field.name != "mode" or value in get_args(Mode):
                values[field.name] = bool(value) if field.name == "private" else str(value)
        return cls(**values)

    def noted(self) -> dict[str, Any]:
        """What is not at its default, in JSON values."""
        default = asdict(Preferences())
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    def with_parameter(self, name: str, text: str) -> Preferences:
        """With one parameter as a person typed it; 'default' is the model's own.

        Raises `BadRequest` that says what may be typed.
        """
        parameter = PARAMETERS.get(name.replace("-", "_"))
        if parameter is None:
            known = ", ".join(PARAMETERS)
            raise BadRequest(f"There is no parameter {name[:40]!r}. There are: {known}.")
        value = None if text in ("", "default") else parameter.read(text)
        changed: dict[str, Any] = {name.replace("-", "_"): value}
        return replace(self, **changed)

    def described(self) -> str:
        """The parameters that are set, for the status line."""
        set_ones = [(name, getattr(self, name)) for name in PARAMETERS]
        return ", ".join(f"{name} {value:g}" for name, value in set_ones if value is not None)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number in a range, as a person types it."""

    kind: Callable[[str], float]
    low: float
    high: float
    help: str

    def read(self, text: str) -> Any:
        """Raises `BadRequest` that says the range."""
        try:
            value = self.kind(text)
        except ValueError:
            value = math.nan
        if not self.low <= value <= self.high:
            whole = "a whole number" if self.kind is int else "a number"
            high = f" to {self.high:g}" if math.isfinite(self.high) else " or more"
            raise BadRequest(f"{text[:40]!r} does not do here: it takes {whole} from {self.low:g}{high}.")
        return value


PARAMETERS: Mapping[str, Parameter] = {
    "temperature": Parameter(float, 0, 2, "0 takes the likeliest token every time"),
    "top_p": Parameter(float, 1e-6, 1, "only the likeliest tokens that together have this probability"),
    "top_k": Parameter(int, 0, math.inf, "only this many of the likeliest tokens; 0: off"),
    "min_p": Parameter(float, 0, 1, "only tokens at least this likely, against the likeliest"),
    "max_tokens": Parameter(int, 1, math.inf, "the longest answer"),
    "seed": Parameter(int, -(2**63), 2**63 - 1, "the same answer again"),
}
