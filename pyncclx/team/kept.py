"""Arrays that kernels use on another stream than the program's, kept until these kernels have ended.

With `comm.stream`, and in windows of a communicator that blocks, a kernel runs on another stream than the one on which
the program made its arrays. A memory pool gives the memory of a dropped array to the next array of the latter stream,
while the kernel may still use it.
"""

from __future__ import annotations

from typing import Any

from ..backends import Event


class Kept:
    """Arrays, each with the event after which no kernel uses it."""

    def __init__(self) -> None:
        self._kept: list[tuple[Event, Any]] = []

    def keep(self, event: Event, arrays: Any) -> None:
        """Keep arrays until an event is over; drop those whose event is."""
        self._kept = [each for each in self._kept if not each[0].is_over()]
        self._kept.append((event, arrays))

    def clear(self) -> None:
        """Drop all of them: every kernel has ended."""
        self._kept.clear()
