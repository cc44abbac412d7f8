"""Allreduce inside a node."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mpi4py import MPI

from ..launch.call import Call, Choice
from ..memory.layout import Layout
from ..numba_kernels import calls as numba
from ..team.base import IntraBase as Intracomm
from .algorithms import BESIDE_WINDOWS_NBYTES, FEW_THREADS_NBYTES, choose_from, chunks, half_of_lines, lines, packets
from .lowering import lowered_by
from .reduction import Reduction, reduction_call, reduction_of

# Longest vector for one shot, by the number of ranks. One shot sends the vector size - 1 times. Two shots send it about
# twice, and take one trip more. Set on 2026-11-21 without a stored measurement; a measured table (tuning/) takes
# precedence.
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 128 << 10, 4: 96 << 10}
ONE_SHOT_NBYTES_OF_MANY = 64 << 10


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose one shot for short vectors, two shots of lines or chunks for longer."""
    limit_nbytes = ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY)
    one_shot = packets(layout, "allreduce_one_shot", limit_nbytes)
    two_shot_lines = lines(
        layout,
        "allreduce_two_shot_lines",
        # A slot holds a contribution and a result; rounding the parts up may take 32 bytes more.
        (half_of_lines(layout) - 32) * layout.size,
        beside_windows_nbytes=BESIDE_WINDOWS_NBYTES,
        # The ranks divide the vector.
        few_threads_nbytes=2 * FEW_THREADS_NBYTES,
    )
    return choose_from(
        (one_shot, two_shot_lines, chunks(layout, "allreduce_two_shot")), "allreduce", layout, nbytes, algorithm
    )


def _lower(comm: Intracomm, given: Reduction) -> Call:
    if numba.wanted(given.algorithm):
        return numba.allreduce(comm, given.send, given.recv, given.op)
    return reduction_call(given, choose)


@lowered_by(_lower)
def allreduce(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Reduction | None:
    """Check the arguments of `Intracomm.Allreduce`; return its call."""
    return reduction_of("Allreduce", sendbuf, recvbuf, op, algorithm)
