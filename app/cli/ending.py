"""How an answer ends that was not let finish, and the exit code of any error."""

from __future__ import annotations

from edgecloud.errors import EdgeCloudError


class Interrupted(EdgeCloudError):
    """A signal ended the answer; the partial is in the history."""

    default_code = "interrupted"

    def __init__(self, number: int) -> None:
        super().__init__("Interrupted.")
        self.number = number


def exit_code(error: EdgeCloudError) -> int:
    """What the process ends with after this error."""
    return 128 + error.number if isinstance(error, Interrupted) else error.exit_code
