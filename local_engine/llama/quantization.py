"""Writing a model file again with other weights' types."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path

from edgecloud import gguf
from edgecloud.errors import BadRequest, ModelLoadError

from .library import complaining, lib, load_reason, messages


def quantize(
    source: Path,
    target: Path,
    ftype: str,
    *,
    threads: int = 1,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write `source` requantised to `ftype` (`Q4_0`, `Q8_0`, `Q4_K_M` …) to `target`; `progress` gets 0..1.

    Raises `BadRequest` for an unknown `ftype` and `ModelLoadError` when llama.cpp refuses.
    """
    name = ftype.upper()
    value = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{name}", None)
    if value is None:
        raise BadRequest(f"llama.cpp knows no quantisation {ftype!r}.", param="ftype")
    gguf.read_info(source)
    params = lib.llama_model_quantize_default_params()
    params.ftype = value
    params.nthread = threads
    params.allow_requantize = True

    def listen(line: str) -> None:
        if progress is not None and (match := re.match(r"\[\s*(\d+)/\s*(\d+)\]", line)):
            progress(int(match[1]) / int(match[2]))

    with complaining:
        messages.complaints.clear()
        messages.listener = listen
        try:
            code = lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
        finally:
            messages.listener = None
        complaints = list(messages.complaints)
    if code != 0:
        target.unlink(missing_ok=True)
        raise ModelLoadError(f"{source.name} can't be requantised to {name}: {load_reason(complaints)}.")
