"""What was asked before, one key away; what is being typed is never lost on the way."""

from __future__ import annotations

from collections.abc import Iterable


class PromptHistory:
    """Earlier prompts, oldest first, and the place in them."""

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(dict.fromkeys(prompts))
        self._place = len(self._prompts)
        self._draft = ""

    def add(self, prompt: str) -> None:
        """A prompt that was sent; it is the latest one now."""
        if prompt in self._prompts:
            self._prompts.remove(prompt)
        self._prompts.append(prompt)
        self._place = len(self._prompts)
        self._draft = ""

    def earlier(self, current: str) -> str | None:
        """The prompt before this place; None at the oldest. `current` comes back on the way down."""
        if self._place == 0:
            return None
        if self._place == len(self._prompts):
            self._draft = current
        self._place -= 1
        return self._prompts[self._place]

    def later(self) -> str | None:
        """The prompt after this place, at last what was being typed; None if that is what is shown."""
        if self._place == len(self._prompts):
            return None
        self._place += 1
        return self._prompts[self._place] if self._place < len(self._prompts) else self._draft

    def leave(self) -> None:
        """Something was typed: what is shown is the draft now."""
        self._place = len(self._prompts)
