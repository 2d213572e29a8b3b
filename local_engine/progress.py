"""How far a load is, told by the thread that loads to whoever asks; and how it is called off."""

from __future__ import annotations

from pathlib import Path

from edgecloud.types import Loading

_IO = Path("/proc/self/io")
"""What Linux counts for a process. Other systems tell less."""


class Progress:
    """Handed to `load_model` as `progress`. `total` are the bytes of the weights.

    llama.cpp tells of tensors once it has the file mapped, and Linux reads the whole file for that: what is
    read from the disk until then is all that is known of it.
    """

    def __init__(self, model: str, total: int) -> None:
        self._model = model
        self._total = total
        self._share = 0.0
        self._is_wanted = True
        self._read_before = bytes_read()

    def __call__(self, share: float) -> bool:
        """Note that this share of the weights is there; whether the rest is still wanted."""
        self._share = share
        return self._is_wanted

    def call_off(self) -> None:
        """Nobody waits for it any more: end the load at the next tensor."""
        self._is_wanted = False

    @property
    def loading(self) -> Loading:
        # Other reading is counted too: that all is there only llama.cpp knows.
        read = min(bytes_read() - self._read_before, self._total - 1)
        return Loading(self._model, max(0, read, round(self._share * self._total)), self._total)


def bytes_read() -> int:
    """Bytes that this process has had read from disks; 0 where that is not counted."""
    try:
        counts = dict(line.split(": ") for line in _IO.read_text().splitlines())
        return int(counts["read_bytes"])
    except (OSError, KeyError, ValueError):
        return 0
