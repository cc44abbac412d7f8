"""Neighbourhood collectives on Cartesian communicators: an exchange among all ranks, most of whom send nothing.

The neighbours are, dimension by dimension, the one below and the one above. What goes to the one below arrives there as
from the one above, also where both are one rank, or this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import devices
from ..buffers import on_host
from ..derived.packing import Part
from ..derived.typed import Typed, resolve_blocks, resolve_each, resolve_typed
from .alltoallw import arrange, choose, exchange
from .launch import Call

if TYPE_CHECKING:
    from ..base import IntraBase as Intracomm

__all__ = ["CALLS", "choose"]

_Resolve = Callable[..., Typed]


def _whole(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """The same message for each neighbour."""
    typed = resolve_typed(spec, name, writable=writable, device=device)
    return replace(typed, parts=typed.parts * neighbors)


def _equal(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """A block for each neighbour, all of the same length."""
    typed = resolve_typed(spec, name, writable=writable, device=device, blocks=neighbors)
    typemap, count, offset, _ = typed.parts[0]
    each = count // neighbors
    parts = tuple(Part(typemap, each, offset + n * each * typemap.extent, 0) for n in range(neighbors))
    return replace(typed, parts=parts)


def _maker(operation: str, resolve_send: _Resolve, resolve_recv: _Resolve) -> Callable[..., Call | None]:
    def make(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Call | None:
        ranks = list(_neighbors(comm))
        if on_host(sendbuf, recvbuf) or not ranks:
            return None
        device = devices.select()
        send = resolve_send(sendbuf, f"{operation}: sendbuf", len(ranks), writable=False, device=device)
        recv = resolve_recv(recvbuf, f"{operation}: recvbuf", len(ranks), writable=True, device=device)
        # In the order in which the receiver has them: it counts this rank as its other neighbour.
        seen = [neighbor ^ 1 for neighbor in range(len(ranks))]
        sent = [(ranks[neighbor], send.parts[neighbor]) for neighbor in seen]
        received = zip(ranks, recv.parts, strict=True)
        return exchange(comm, operation, arrange(send, sent, comm.size), arrange(recv, received, comm.size))

    make.__doc__ = f"See `Cartcomm.{operation}`."
    return make


def _neighbors(comm: Any) -> Iterator[int]:
    """Ranks, or MPI.PROC_NULL past the end of a dimension that is not periodic."""
    for dimension in range(comm.ndim):
        below_and_above: Sequence[int] = MPI.Cartcomm.Shift(comm, dimension, 1)
        yield from below_and_above


#: What makes the call of each operation.
CALLS = {
    "Neighbor_allgather": _maker("Neighbor_allgather", _whole, _equal),
    "Neighbor_allgatherv": _maker("Neighbor_allgatherv", _whole, resolve_blocks),
    "Neighbor_alltoall": _maker("Neighbor_alltoall", _equal, _equal),
    "Neighbor_alltoallv": _maker("Neighbor_alltoallv", resolve_blocks, resolve_blocks),
    "Neighbor_alltoallw": _maker("Neighbor_alltoallw", resolve_each, resolve_each),
}
