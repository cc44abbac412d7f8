"""Barrier in Python: twin of cuda/collectives/barrier.cu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import device as d


def barrier(size: int) -> Callable[..., None]:
    """Return a kernel that signals every peer and waits for a signal from each."""

    def kernel(team: int, work: int, args: Any, call: int) -> None:
        d.barrier(team)

    return kernel
