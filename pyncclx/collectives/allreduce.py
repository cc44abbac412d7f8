"""Allreduce."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import backends
from ..arrays.buffers import on_host, resolve
from ..launch.call import Call, check_equal, is_in_place
from ..launch.choice import Choice
from ..memory.layout import Layout
from ..memory.parameters import ReduceArgs
from ..numba_kernels import calls as numba
from ..operators import ops
from .ladders import BESIDE_WINDOWS_NBYTES, FEW_FOLD, Rung, climb, half_of_lines, in_lines, pipeline

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

# One shot sends the vector size - 1 times, two shots about twice, after one more trip.
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 128 << 10, 4: 96 << 10}
ONE_SHOT_NBYTES_OF_MANY = 64 << 10


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """One shot while short, then two shots of lines, a pipeline when long."""
    limit = ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY)
    # Two shots need room for a contribution and a result in each slot; what the parts are rounded up by is left free.
    channel_most = (half_of_lines(layout) - 32) * layout.size
    two_shots = in_lines(layout, "allreduce_two_shot_lines", channel_most, BESIDE_WINDOWS_NBYTES)
    two_shots = two_shots._replace(few_most=2 * FEW_FOLD)  # a vector is divided among the ranks
    one_shot = Rung("allreduce_one_shot", limit, layout.packet_nbytes, layout.slot_nbytes)
    return climb(layout, nbytes, (one_shot, two_shots, pipeline("allreduce_two_shot")), algorithm)


def allreduce(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> Call | None:
    """See `Intracomm.Allreduce`."""
    if on_host(sendbuf, recvbuf):
        return None
    device = backends.select()
    recv = resolve(recvbuf, "Allreduce: recvbuf", writable=True, device=device)
    send = recv if is_in_place(sendbuf) else resolve(sendbuf, "Allreduce: sendbuf", writable=False, device=device)
    check_equal("Allreduce", send, recv)
    reduction = ops.of(op, "Allreduce")
    if numba.wanted(algorithm):
        return numba.allreduce(comm, send, recv, reduction)
    template = ops.template("Allreduce", reduction, recv)
    nbytes = recv.nbytes
    return Call(
        operation="Allreduce",
        choose=choose,
        sized=(nbytes, algorithm),
        template=template,
        arguments=ReduceArgs(send=send.address, recv=recv.address, nbytes=nbytes).pack(),
        buffers=(send, recv),
        signature=(recv.count, recv.datatype.name, reduction.name, algorithm),
        empty=nbytes == 0,
    )
