"""Reduce."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import devices, ops
from ..buffers import on_host, resolve, where
from ..errors import MPIError
from ..layout import REDUCE, Layout
from .launch import Call, Choice, Rung, check_equal, check_root, climb, is_in_place, pipeline

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm

# root receives the vector size - 1 times: worth it for the trip it saves while it is short.
ONE_SHOT_NBYTES = 1200 << 10  # that reach root


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """One shot while short, then two shots of packets, a pipeline when long."""
    limit = ONE_SHOT_NBYTES // max(1, layout.size - 1)
    # A slot holds a contribution and a result; what the parts are rounded up by is left free.
    channel_most = max(0, layout.slot_nbytes // 2 - 32) * max(1, layout.size - 1)
    one_shot = Rung("reduce_one_shot", limit, layout.packet_nbytes, layout.slot_nbytes)
    two_shots = Rung("reduce_two_shot_packets", sys.maxsize, channel_most * layout.channels, max(1, channel_most))
    choice = climb(layout, nbytes, (one_shot, two_shots, pipeline("reduce_two_shot")), algorithm)
    of_two = layout.size == 2 and choice.kernel == "reduce_two_shot"
    return choice._replace(kernel="reduce_two_shot_to_root") if of_two else choice


def reduce(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0, *, algorithm: str | None = None
) -> Call | None:
    """See `Intracomm.Reduce`."""
    at_root = comm.rank == root
    if on_host(sendbuf, recvbuf if at_root or where(sendbuf) is None else None):
        return None
    check_root(comm, "Reduce", root)
    device = devices.select()
    if at_root:
        recv = resolve(recvbuf, "Reduce: recvbuf", writable=True, device=device)
        send = recv if is_in_place(sendbuf) else resolve(sendbuf, "Reduce: sendbuf", writable=False, device=device)
        check_equal("Reduce", send, recv)
    else:
        if is_in_place(sendbuf):
            text = f"Reduce: sendbuf is {sendbuf!r} on rank {comm.rank}; only root can reduce in place"
            raise MPIError(MPI.ERR_ARG, text)
        recv = send = resolve(sendbuf, "Reduce: sendbuf", writable=False, device=device)
    reduction = ops.of(op, "Reduce")
    template = ops.template("Reduce", reduction, send)
    return Call(
        "Reduce",
        choose,
        (send.nbytes, algorithm),
        template,
        REDUCE.pack(send.address, recv.address, send.nbytes, root),
        (send, recv),
        (send.count, send.datatype.name, reduction.name, root, algorithm),
        send.nbytes == 0,
    )
