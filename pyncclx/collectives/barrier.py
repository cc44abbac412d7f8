"""Barrier on the device."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ..launch.call import Call, Choice
from ..memory.layout import Layout
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .arguments import check_algorithm
from .lowering import lowered_by


@lru_cache
def choose(layout: Layout, nbytes: int) -> Choice:
    """Choose one channel, which sends one signal to every peer."""
    return Choice("barrier", 1, 32, "one signal to every peer")


def barrier_call() -> Call:
    """Return a barrier of the ranks' streams."""
    return Call(operation="Barrier", choose=choose, sized=(0,))


class Signals(NamedTuple):
    """The checked arguments of a Barrier on the device."""

    algorithm: str | None


def _lower(comm: Intracomm, given: Signals) -> Call:
    if numba.wanted(given.algorithm):
        return numba.barrier(comm)
    return barrier_call()


@lowered_by(_lower)
def barrier(comm: Intracomm, *, device: bool = False, algorithm: str | None = None) -> Signals | None:
    """Check the arguments of `Intracomm.Barrier`; return its call."""
    check_algorithm("Barrier", algorithm, numba.NAME)
    return Signals(algorithm) if device else None
