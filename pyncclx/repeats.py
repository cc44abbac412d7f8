"""Launches that a program makes again and again, with the same arrays: after some times they are made ready."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from .devices import Repeated

TIMES = 3  # as often a launch is made as any other; then making it ready pays
MOST = 64  # of a communicator; a program with more different ones has them made ready anew, or not at all


class Repeats:
    """The launches of one communicator, by all that they depend on."""

    def __init__(self) -> None:
        self._ready: dict[Hashable, Repeated] = {}
        self._seen: dict[Hashable, int] = {}

    def find(self, key: Hashable) -> Repeated | None:
        """Return the launch if it has been made ready."""
        return self._ready.get(key)

    def note(self, key: Hashable, make_ready: Callable[[], Repeated]) -> None:
        """Say that a launch has been made that was not ready."""
        times = self._seen.pop(key, 0) + 1
        if times < TIMES:
            self._seen[key] = times
        else:
            self._ready[key] = make_ready()
        for known in (self._ready, self._seen):
            if len(known) > MOST:
                known.clear()

    def clear(self) -> None:
        """Forget all: what launches are told of the communicator has changed."""
        self._ready.clear()
        self._seen.clear()
