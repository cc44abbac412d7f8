"""Scan and Exscan over nodes.

Each rank sends its vector to all ranks above, which fold the vectors they receive in rank order.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mpi4py import MPI

from ...arrays.places import on_host
from ...nodes.call import SpanningCall
from ...nodes.composition import Composition
from ...nodes.engine import Transfer
from ...nodes.places import Places
from ...operators import ops
from ...team.base import IntraBase as Intracomm
from ..arguments import resolve_pair
from .folding import Folding
from .movement import exchange
from .options import check_no_choice
from .pieces import aligned


def scan(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> SpanningCall | None:
    """See `Intracomm.Scan`."""
    return _call(comm, "Scan", sendbuf, recvbuf, op, algorithm)


def exscan(
    comm: Intracomm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
) -> SpanningCall | None:
    """See `Intracomm.Exscan`."""
    return _call(comm, "Exscan", sendbuf, recvbuf, op, algorithm)


def explain(places: Places, nbytes: int) -> str:
    """Describe how Scan and Exscan run, for `Comm.explain`."""
    return "each vector goes to all ranks above its own, which fold; memory and traffic grow with the ranks"


def _call(
    comm: Intracomm, operation: str, sendbuf: Any, recvbuf: Any, op: Any, algorithm: str | None
) -> SpanningCall | None:
    if on_host(sendbuf, recvbuf):
        return None
    check_no_choice(operation, algorithm)
    send, recv = resolve_pair(operation, sendbuf, recvbuf)
    reduction = ops.of(op, operation)
    folding = Folding.of(comm, ops.template(operation, reduction, recv), recv.datatype.itemsize)
    return SpanningCall(
        operation=operation,
        compose=partial(
            _compose,
            folding=folding,
            send=send.address,
            recv=recv.address,
            nbytes=recv.nbytes,
            inclusive=operation == "Scan",
        ),
        buffers=(send, recv),
        signature=(recv.count, recv.datatype.name, reduction.name),
        empty=recv.nbytes == 0,
    )


def _compose(composition: Composition, *, folding: Folding, send: int, recv: int, nbytes: int, inclusive: bool) -> None:
    places, stride = composition.places, aligned(nbytes)
    count = places.rank + inclusive
    (slots,) = composition.memory(count * stride)
    sends = [Transfer(rank, send, nbytes) for rank in range(places.rank + (not inclusive), places.size)]
    receives = [Transfer(rank, slots + rank * stride, nbytes) for rank in range(count)]
    moved = exchange(composition, "exchange of contributions", sends, receives)
    length = nbytes if count else 0
    composition.fold(
        folding.template,
        vectors=slots,
        count=count,
        stride=stride,
        nbytes=length,
        result=recv,
        finish_as=max(count, 1),
        after=(moved,),
    )
