"""Allreduce."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .. import devices, ops
from ..buffers import resolve
from ..layout import REDUCE, Layout
from .launch import Choice, by_length, check_equal, is_in_place, run

if TYPE_CHECKING:
    from ..communicator import Intracomm

# One shot sends the vector size - 1 times, two shots about twice: equal traffic at 2 or 3 ranks.
ONE_SHOT_NBYTES = {2: 1 << 20, 3: 512 << 10, 4: 256 << 10}
ONE_SHOT_NBYTES_OF_MANY = 128 << 10


@lru_cache  # the same few sizes come again and again
def choose(layout: Layout, nbytes: int, algorithm: str | None = None) -> Choice:
    """One shot while short, two shots when long."""
    limit = ONE_SHOT_NBYTES.get(layout.size, ONE_SHOT_NBYTES_OF_MANY)
    return by_length(layout, nbytes, "allreduce_one_shot", "allreduce_two_shot", algorithm, limit)


def allreduce(comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str | None) -> None:
    """See `Intracomm.Allreduce`."""
    device = devices.select()
    recv = resolve(recvbuf, "Allreduce: recvbuf", writable=True, device=device)
    send = recv if is_in_place(sendbuf) else resolve(sendbuf, "Allreduce: sendbuf", writable=False, device=device)
    check_equal("Allreduce", send, recv)
    reduction = ops.of(op, "Allreduce")
    ops.check("Allreduce", reduction, recv.datatype)
    run(
        comm,
        "Allreduce",
        lambda layout: choose(layout, recv.nbytes, algorithm),
        (recv.datatype.cxx, reduction.cxx),
        REDUCE.pack(send.address, recv.address, recv.nbytes, 0),
        (send, recv),
        (recv.count, recv.datatype.name, reduction.name, algorithm),
        empty=recv.nbytes == 0,
    )
