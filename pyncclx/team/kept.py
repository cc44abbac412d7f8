"""Arrays that kernels use on other streams, kept until these kernels have ended.

With `comm.stream`, and in windows of a communicator that blocks, kernels run on another stream than the one on which
the program allocated its arrays. A memory pool reuses the memory of a deleted array on the stream that allocated it,
while such a kernel may still use it.
"""

from __future__ import annotations

from typing import Any

from ..backends import Event


class Kept:
    """Arrays, each with an event after which no kernel uses it."""

    def __init__(self) -> None:
        self._kept: list[tuple[Event, Any]] = []

    def keep(self, event: Event, arrays: Any) -> None:
        """Keep arrays until an event has ended; drop those whose event has."""
        self._kept = [each for each in self._kept if not each[0].is_over()]
        self._kept.append((event, arrays))

    def clear(self) -> None:
        """Drop all arrays, after every kernel has ended."""
        self._kept.clear()
