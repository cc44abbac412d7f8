"""Arrays that kernels use on other streams, kept until these kernels have ended.

With `comm.stream`, and in windows of a communicator that blocks, kernels run on another stream than the one on which
the program allocated its arrays. A memory pool reuses the memory of a deleted array on the stream that allocated it,
while such a kernel may still use it. The same is true of nonblocking calls whose requests an exception has dropped.
"""

from __future__ import annotations

import itertools
from typing import Any, Protocol


class End(Protocol):
    """What ends, such as an event."""

    def is_over(self) -> bool:
        """Return whether it has ended."""


class Kept:
    """Arrays, each with an event after which no kernel uses it.

    Attributes
    ----------
    entries : dict
        The ends and the arrays.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[End, Any]] = {}
        self._numbers = itertools.count()

    def keep(self, end: End, arrays: Any) -> None:
        """Keep arrays until `end` is over; drop those whose end is."""
        self.sweep()
        self.add(end, arrays)

    def add(self, end: End, arrays: Any) -> None:
        """Keep arrays until a later `sweep` finds that `end` is over.

        A destructor may call this at any time.
        """
        self.entries[next(self._numbers)] = end, arrays

    def sweep(self) -> None:
        """Drop the arrays whose end is over."""
        for number, (end, _) in list(self.entries.items()):
            if end.is_over():
                self.entries.pop(number, None)
