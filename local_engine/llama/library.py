"""The binding itself, loaded once, and what llama.cpp says while it works."""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

# How often GNU OpenMP's threads look before they sleep at a barrier. By default they spin for milliseconds,
# which on a busy machine keeps the very thread they wait for from running: 1 to 6 tokens/s were seen where
# this gives 20 to 100, and on an idle one it costs nothing (bench/threads.py). Read when the library loads.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
# ggml answers an abort, whoever's it is, by running gdb on the process, which prints on stdout.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

import llama_cpp.llama_cpp as _binding

# The binding's own annotations describe ctypes objects that mypy can't follow.
lib: Any = _binding

log = logging.getLogger("edgecloud.llama")


class Messages:
    """Catches llama.cpp's log lines: they go to our logger, and the last complaints are kept for error
    sentences.
    """

    LEVELS: Mapping[int, int] = {2: logging.WARNING, 3: logging.ERROR}

    def __init__(self) -> None:
        self.complaints: deque[str] = deque(maxlen=16)
        self.listener: Callable[[str], None] | None = None
        self.callback = lib.llama_log_callback(self._receive)
        lib.llama_log_set(self.callback, None)
        lib.llama_backend_init()

    def _receive(self, level: int, text: bytes | None, _user_data: object) -> None:
        line = (text or b"").decode(errors="replace").strip()
        if not line or line.strip(".") == "":
            return
        severity = self.LEVELS.get(level, logging.DEBUG)
        if severity == logging.ERROR:
            self.complaints.append(line)
        if self.listener is not None:
            self.listener(line)
        # A failed load or grammar becomes an error with its own sentence, so nothing here is louder than
        # debug.
        log.debug("%s", line)


messages = Messages()
# llama.cpp's log has no owner, so what complains must do so alone to be understood.
complaining = threading.Lock()


def supports_gpu() -> bool:
    """Whether this build of the binding can offload layers to a GPU."""
    return bool(lib.llama_supports_gpu_offload())


@cache
def build() -> str:
    """Names this build of llama.cpp: what one build saved is not given to another.

    The binding's version, the library's content, and name and size of those beside it, which on GPUs are
    hundreds of megabytes.
    """
    digest = hashlib.sha256(importlib.metadata.version("llama-cpp-python").encode())
    for path in sorted((Path(_binding.__file__).parent / "lib").iterdir()):
        digest.update(f"{path.name} {path.stat().st_size}\0".encode())
        if path.stem == "libllama" or path.stem == "llama":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


def load_reason(complaints: list[str]) -> str:
    """Why a file was not loaded, from what llama.cpp said meanwhile; the rest of a sentence."""
    text = "; ".join(complaints)
    if "unknown model architecture" in text:
        name = text.split("architecture:")[-1].split(";")[0].strip()
        return f"llama.cpp does not know its architecture ({name})"
    if "not within the file bounds" in text or "corrupted" in text or "failed to read" in text:
        return "it is truncated or damaged, download it again"
    if complaints:
        # The first complaint is the cause, the later ones its echoes; a function name in front means nothing
        # to a person.
        return re.sub(r"^\w+: (error loading model: )?", "", complaints[0]).rstrip(".")
    return "llama.cpp gave no reason"
