"""A serving process, its stderr read while it runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from .live import PATIENCE_S, eventually

ROOT = Path(__file__).parents[2]


class Process:
    """A serving process; `lines` of its stderr as they come. `inside` is a command that runs it."""

    def __init__(
        self,
        *arguments: object,
        module: str = "tests.support.serve_process",
        environment: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        inside: Sequence[str] = (),
    ) -> None:
        command = [*inside, sys.executable, "-m", module, *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.patience_s = patience_s
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr
        self.lines.extend(iter(self.process.stderr.readline, ""))
        self.lines.append("")

    @property
    def url(self) -> str:
        eventually(
            lambda: "edgecloud serves" in self.text or self.process.poll() is not None, self.patience_s
        )
        found = re.search(r"http://[\d.:]+\d", self.text)
        assert found, self.text
        return found[0]

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(self.patience_s)
