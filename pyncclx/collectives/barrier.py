"""Barrier on the device."""

from __future__ import annotations

from functools import lru_cache

from ..launch.call import Call
from ..launch.choice import Choice
from ..memory.layout import Layout
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .arguments import check_algorithm


@lru_cache
def choose(layout: Layout, nbytes: int) -> Choice:
    """Choose one channel, which sends one signal to every peer."""
    return Choice("barrier", 1, 32, "one signal to every peer")


def barrier(comm: Intracomm, *, device: bool = False, algorithm: str | None = None) -> Call | None:
    """See `Intracomm.Barrier`."""
    check_algorithm("Barrier", algorithm, numba.NAME)
    if device and numba.wanted(algorithm):
        return numba.barrier(comm)
    if not device:
        return None
    return Call(operation="Barrier", choose=choose, sized=(0,), arguments=b"", buffers=(), signature=())
