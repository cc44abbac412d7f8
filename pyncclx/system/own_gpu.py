"""Which GPU is this process's: the one that it chose, that of its first device array, or else the current one."""

from __future__ import annotations

from .process import held

__all__ = ["choose", "chosen", "is_open"]

_chosen: list[int] = held([])


def is_open() -> bool:
    """Return whether no GPU has been chosen yet."""
    return not _chosen


def choose(ordinal: int) -> None:
    """Choose a GPU, or another one."""
    _chosen[:] = [ordinal]


def chosen() -> int | None:
    """Return the GPU that was chosen; None if none was."""
    return _chosen[0] if _chosen else None
