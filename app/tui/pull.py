"""A model on its way from the hub, in a thread, with words for how far it is."""

from __future__ import annotations

from edgecloud import models
from edgecloud.settings import Settings
from edgecloud.units import part


class Stopped(Exception):
    """The user had enough; what came is kept, and the next pull goes on from it."""


class Pull:
    """A pull that runs in a thread. `words` says how far it is."""

    def __init__(self, spec: str, settings: Settings) -> None:
        self.spec = spec
        self.settings = settings
        self.words = f"asking the hub for {spec} …"
        self._is_stopped = False

    def run(self) -> models.ModelFile:
        """The file when it is here. Raises `Stopped`, or an `EdgeCloudError` that says what went wrong."""
        return models.pull(self.spec, self.settings, self._progress)

    def stop(self) -> None:
        """Stop at the next piece."""
        self._is_stopped = True

    def _progress(self, done: int, total: int, name: str) -> None:
        if self._is_stopped:
            raise Stopped
        self.words = f"pulling {name}: {part(done, total)}"
