"""Peers we measure against, each in a venv of its own under `.bench/`, never a dependency of ours."""

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE.parent.parent / ".bench"
PACKAGES = {
    "llama_server": ["xllamacpp==2026.10.11549"],
    "llama_single": ["llama-cpp-python==0.3.36"],
}


def python(peer: str) -> Path:
    """The interpreter of a peer's venv, made when missing."""
    home = VENVS / peer
    interpreter = home / "bin" / "python"
    marker = home / ".complete"
    if not marker.exists():
        print(f"making a venv for {peer} …", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([interpreter, "-m", "pip", "install", "-q", *PACKAGES[peer]], check=True)
        marker.touch()
    return interpreter


def start(peer: str, *args: str | int) -> subprocess.Popen[str]:
    """A peer's process with pipes on stdin and stdout; closing its stdin ends it."""
    return subprocess.Popen(
        [python(peer), HERE / f"{peer}.py", *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
