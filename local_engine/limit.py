"""How many answers may run or wait, counted as they come and go, from any thread."""

from __future__ import annotations

import threading

from edgecloud.errors import Overloaded, Unavailable


class QueueLimit:
    """Lets `capacity` answers in at once, of which `parallel` run together."""

    def __init__(self, capacity: int, parallel: int) -> None:
        self._capacity = capacity
        self._parallel = parallel
        self._lock = threading.Lock()
        self._is_closed = False
        self._mean_answer_s = 1.0
        self.num_inside = 0

    def enter(self, count: int) -> None:
        """Let `count` answers in. A job of more than fits is let in where nothing else is.

        Raises `Overloaded` when too many are inside already, `Unavailable` after `close`.
        """
        with self._lock:
            if self._is_closed:
                raise Unavailable("The model is being unloaded; try again in a moment.", retry_after=1)
            if self.num_inside and self.num_inside + count > self._capacity:
                seconds = min(60.0, max(1.0, self._mean_answer_s * self.num_inside / self._parallel))
                raise Overloaded(
                    f"{self.num_inside} answers are running or waiting and the limit is {self._capacity}: "
                    f"try again in {seconds:.0f} s.",
                    retry_after=round(seconds),
                )
            self.num_inside += count

    def leave(self) -> None:
        """One answer is over."""
        with self._lock:
            self.num_inside -= 1

    def learn(self, seconds: float) -> None:
        """A job took so long, from being asked for to its end."""
        self._mean_answer_s += 0.1 * (seconds - self._mean_answer_s)

    def close(self) -> None:
        """Let nobody in any more."""
        with self._lock:
            self._is_closed = True
