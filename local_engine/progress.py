"""How far a load is, told by the thread that loads to whoever asks; and how it is called off."""

from __future__ import annotations

from edgecloud.types import Loading


class Progress:
    """Handed to `load_model` as `progress`. `total` are the bytes of the weights."""

    def __init__(self, model: str, total: int) -> None:
        self._model = model
        self._total = total
        self._share = 0.0
        self._is_wanted = True

    def __call__(self, share: float) -> bool:
        """Note that this share of the weights is there; whether the rest is still wanted."""
        self._share = share
        return self._is_wanted

    def call_off(self) -> None:
        """Nobody waits for it any more: end the load at the next tensor."""
        self._is_wanted = False

    @property
    def loading(self) -> Loading:
        return Loading(self._model, round(self._share * self._total), self._total)
