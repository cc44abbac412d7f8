"""Reduce."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import devices, ops
from ..buffers import on_host, resolve, where
from ..errors import MPIError
from ..layout import REDUCE, Layout
from .launch import Call, Choice, by_length, check_equal, check_root, is_in_place

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm

# root receives the vector size - 1 times: worth it for the trip it saves while it is short.
ONE_SHOT_NBYTES = 32 << 10


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """One shot while short, two shots when long."""
    return by_length(layout, nbytes, "reduce_one_shot", "reduce_two_shot", algorithm, ONE_SHOT_NBYTES)


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
