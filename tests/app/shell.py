"""Running the real `edgecloud` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = (sys.executable, "-m", "edgecloud")


def environment(home: Path, **extra: str) -> dict[str, str]:
    """This process's environment with edgecloud's folders under `home` and one thread for the model; there is
    a settings file, with nothing in it where nobody has written one.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").touch()
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("EDGECLOUD_", "_EDGE"))
    }
    return {
        **clean,
        "EDGECLOUD_HOME": str(home / "data"),
        "EDGECLOUD_CONFIG": str(home / "config.toml"),
        "EDGECLOUD_RUNTIME": str(home / "run"),
        "EDGECLOUD_LOCAL__THREADS": "1",
        "TERM": "xterm",
        **extra,
    }


def edgecloud(
    home: Path, *arguments: str, stdin: bytes = b"", **extra: str
) -> subprocess.CompletedProcess[bytes]:
    """Run to the end with pipes for everything."""
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, env=environment(home, **extra)
    )
