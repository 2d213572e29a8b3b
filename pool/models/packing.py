"""How a folder's 4-bit weights are packed, as its `config.json` says: AWQ's way or GPTQ's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from edgecloud.errors import NotSupported

if TYPE_CHECKING:
    import torch

    from edgecloud.kernels.repack import Unpacked


@dataclass(frozen=True, slots=True)
class Packing:
    """`ordered`: GPTQ took the inputs by the size of their activations ("act-order"), and says which group
    each is in. `zeros_less_one`: zero points are stored minus one, as GPTQ's first format has them.

    Group sizes are not in here: each weight's own scales tell.
    """

    method: Literal["awq", "gptq"]
    ordered: bool = False
    zeros_less_one: bool = True

    @property
    def type(self) -> str:
        return self.method.upper()

    @property
    def tensors(self) -> tuple[str, ...]:
        """What stands in a weight's place, in the order in which `unpack` takes it."""
        return ("qweight", "qzeros", "scales", *(("g_idx",) if self.ordered else ()))

    def unpack(self, *tensors: torch.Tensor) -> Unpacked:
        """Raises `ValueError` or `RuntimeError` for tensors that don't fit each other."""
        from edgecloud.kernels.repack import unpack_awq, unpack_gptq

        if self.method == "awq":
            return unpack_awq(*tensors)
        return unpack_gptq(*tensors, zeros_less_one=self.zeros_less_one)


def packing_of(facts: Mapping[str, Any]) -> Packing | None:
    """From the object in `config.json`; None where nothing is quantized.

    Raises `NotSupported` for other methods, other layouts of these, and other than 4 bits.
    """
    said = facts.get("quantization_config")
    if not said:
        return None
    if not isinstance(said, dict):
        raise _unknown("an unknown method")
    method = str(said.get("quant_method", "an unknown method")).lower()
    bits = said.get("bits", said.get("w_bit"))
    if method not in ("awq", "gptq"):
        raise _unknown(method)
    if bits != 4:
        raise _unknown(f"{method} of {bits} bits")
    layout = str(said.get("version", "gemm") if method == "awq" else said.get("checkpoint_format", "gptq"))
    if layout.lower() not in {"awq": ("gemm",), "gptq": ("gptq", "gptq_v2")}[method]:
        raise _unknown(f"{method} laid out for {layout}")
    # A rule that begins with "-:" leaves modules unquantized, which they say themselves.
    if any(not str(rule).startswith("-:") for rule in said.get("dynamic") or ()):
        raise _unknown(f"{method} of several widths")
    if method == "awq":
        return Packing("awq")
    return Packing("gptq", bool(said.get("desc_act")), layout.lower() == "gptq")


def _unknown(what: str) -> NotSupported:
    return NotSupported(
        f"The pool reads AWQ (gemm) and GPTQ weights of 4 bits, and these are {what[:60]}: "
        "take the plain model, or a GGUF file."
    )
