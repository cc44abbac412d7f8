"""Scan and Exscan, with the same kernels; Exscan omits a rank's own contribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mpi4py import MPI

from ..launch.call import Call, Choice
from ..memory.cstruct import I32
from ..memory.layout import Layout
from ..memory.parameters import ReduceArgs
from ..team.base import IntraBase as Intracomm
from .algorithms import choose_from, chunks, packets
from .allreduce import ONE_SHOT_NBYTES, ONE_SHOT_NBYTES_OF_MANY
from .lowering import lowered_by
from .reduction import Reduction, reduction_call, reduction_of


@dataclass(slots=True, kw_only=True)
class ScanArgs(ReduceArgs):
    """Kernel arguments of scans: `ScanArgs` in cuda/collectives/scan.cu after `team`."""

    exclusive: I32


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose one shot for short vectors, two shots for long ones.

    In one shot rank 0 sends the vector size - 1 times, in two shots about twice. The limits are those of Allreduce, not
    measured for Scan; a measured table (tuning/) takes precedence.
    """
    limit_nbytes = ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY)
    algorithms = packets(layout, "scan_one_shot", limit_nbytes), chunks(layout, "scan_two_shot")
    return choose_from(algorithms, "scan", layout, nbytes, algorithm)


def _lower(comm: Intracomm, given: Reduction) -> Call:
    send, recv, exclusive = given.send, given.recv, given.operation == "Exscan"
    arguments = ScanArgs(send=send.address, recv=recv.address, nbytes=recv.nbytes, exclusive=exclusive)
    return reduction_call(given, choose, arguments.pack())


@lowered_by(_lower)
def scan(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Reduction | None:
    """Check the arguments of `Intracomm.Scan`; return its call."""
    return reduction_of("Scan", sendbuf, recvbuf, op, algorithm)


@lowered_by(_lower)
def exscan(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Reduction | None:
    """Check the arguments of `Intracomm.Exscan`; return its call."""
    return reduction_of("Exscan", sendbuf, recvbuf, op, algorithm)
