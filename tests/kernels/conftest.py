"""With `TRITON_INTERPRET=1` these tests run the Triton kernels, in Triton's interpreter, mended and strict;
without it, the CPU forms. `test_interpreted.py` starts the first kind in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import Phase, settings

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if INTERPRETED:
    from .numerics import mend
    from .sanitizer import sanitized

    mend()
    # Here a failing example costs a second: shrinking it would take minutes.
    settings.register_profile("interpreted", phases=[Phase.generate], derandomize=True)
    settings.load_profile("interpreted")

    @pytest.fixture(autouse=True)
    def strict() -> Iterator[None]:
        with sanitized():
            yield


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)
