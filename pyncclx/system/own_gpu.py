"""The GPU of this process.

It is the one that the program chose, or that of its first device array, or else the current one.
"""

from __future__ import annotations

from .process import held

__all__ = ["choose", "chosen", "is_open"]

_chosen: list[int] = held([])


def is_open() -> bool:
    """Return whether no GPU has been chosen yet."""
    return not _chosen


def choose(ordinal: int) -> None:
    """Set the GPU of this process; a later choice replaces it."""
    _chosen[:] = [ordinal]


def chosen() -> int | None:
    """Return the chosen GPU; None if there is none yet."""
    return _chosen[0] if _chosen else None
