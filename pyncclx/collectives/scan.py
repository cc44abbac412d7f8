"""Scan and Exscan: the same kernels; Exscan leaves out a rank's own contribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mpi4py import MPI

from ..arrays.places import on_host
from ..launch.call import Call
from ..launch.choice import Choice
from ..memory.cstruct import I32
from ..memory.layout import Layout
from ..memory.parameters import ReduceArgs
from ..operators import ops
from ..team.base import IntraBase as Intracomm
from .algorithms import choose_from, chunks, packets
from .arguments import resolve_pair

# Longest vector for one shot, by the number of ranks. One shot sends the vector size - 1 times from rank 0, two shots
# about twice. Limits of Allreduce, not measured for Scan; a measured table (tuning/) takes precedence.
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 128 << 10, 4: 96 << 10}
ONE_SHOT_NBYTES_OF_MANY = 64 << 10


@dataclass(slots=True, kw_only=True)
class ScanArgs(ReduceArgs):
    """`ScanArgs` of cuda/collectives/scan.cu after its Team."""

    exclusive: I32


@lru_cache
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """Choose one shot for short vectors, two shots for long ones."""
    limit_nbytes = ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY)
    algorithms = packets(layout, "scan_one_shot", limit_nbytes), chunks("scan_two_shot")
    return choose_from(algorithms, "scan", layout, nbytes, algorithm)


def scan(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Call | None:
    """See `Intracomm.Scan`."""
    return _prefix_call("Scan", sendbuf, recvbuf, op, algorithm)


def exscan(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Call | None:
    """See `Intracomm.Exscan`."""
    return _prefix_call("Exscan", sendbuf, recvbuf, op, algorithm)


def _prefix_call(operation: str, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str | None) -> Call | None:
    if on_host(sendbuf, recvbuf):
        return None
    send, recv = resolve_pair(operation, sendbuf, recvbuf)
    reduction = ops.of(op, operation)
    return Call(
        operation=operation,
        choose=choose,
        sized=(recv.nbytes, algorithm),
        template=ops.template(operation, reduction, recv),
        arguments=ScanArgs(
            send=send.address, recv=recv.address, nbytes=recv.nbytes, exclusive=operation == "Exscan"
        ).pack(),
        buffers=(send, recv),
        signature=(recv.count, recv.datatype.name, reduction.name, algorithm),
    )
