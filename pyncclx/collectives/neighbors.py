"""Neighbourhood collectives: an exchange among all ranks, most of whom send nothing.

On a Cartesian communicator the neighbours are, dimension by dimension, the one below and the one above. What goes to
the one below arrives there as from the one above, also where both are one rank, or this one. On a graph the edges
between two ranks, if there are several, are taken in the order in which each of them has them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..arrays.buffers import on_host
from ..derived.packing import Part
from ..derived.typed import Typed, resolve_blocks, resolve_each, resolve_typed
from ..launch.call import Call
from ..team.state import Attachment
from .alltoallw import arrange, choose, exchange

if TYPE_CHECKING:
    from ..team.base import IntraBase as Intracomm

__all__ = [
    "OPERATIONS",
    "choose",
    "neighbor_allgather",
    "neighbor_allgatherv",
    "neighbor_alltoall",
    "neighbor_alltoallv",
    "neighbor_alltoallw",
]

_NAME = "neighbors"  # of the attachment
_Resolve = Callable[..., Typed]


def _whole(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """The same message for each neighbour."""
    typed = resolve_typed(spec, name, writable=writable, device=device)
    return replace(typed, parts=typed.parts * neighbors)


def _equal(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """A block for each neighbour, all of the same length."""
    blocks = max(neighbors, 1)  # a rank without any may pass any buffer
    typed = resolve_typed(spec, name, writable=writable, device=device, blocks=blocks)
    typemap, count, offset, _ = typed.parts[0]
    each = count // blocks
    parts = tuple(Part(typemap, each, offset + n * each * typemap.extent, 0) for n in range(neighbors))
    return replace(typed, parts=parts)


def _maker(operation: str, resolve_send: _Resolve, resolve_recv: _Resolve) -> Callable[..., Call | None]:
    def make(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Call | None:
        edges = _edges_of(comm)
        if edges is None or on_host(sendbuf, recvbuf):
            return None
        device, sources, destinations = backends.select(), edges.sources, edges.destinations
        send = resolve_send(sendbuf, f"{operation}: sendbuf", len(destinations), writable=False, device=device)
        recv = resolve_recv(recvbuf, f"{operation}: recvbuf", len(sources), writable=True, device=device)
        sent = [(destinations[edge], send.parts[edge]) for edge in edges.order]
        received = zip(sources, recv.parts, strict=True)
        return exchange(comm, operation, arrange(send, sent, comm.size), arrange(recv, received, comm.size))

    make.__doc__ = f"See `Topocomm.{operation}`."
    return make


class Edges(NamedTuple):
    """Whom this rank receives from, and sends to: ranks, or MPI.PROC_NULL past the end of a dimension."""

    sources: list[int]
    destinations: list[int]
    order: list[int]  # of the destinations, so that each receiver gets its blocks in the order of its sources


class _Topology(Attachment):
    """What a communicator keeps of its topology."""

    def __init__(self, edges: Edges | None) -> None:
        self.edges = edges


def _edges_of(comm: Any) -> Edges | None:
    """Return the edges of this rank; None if some rank has none, and so no array. Collective at the first call."""
    attachments = comm.state.attachments
    topology = attachments.get(_NAME)
    if topology is None:
        edges = _cartesian(comm) if isinstance(comm, MPI.Cartcomm) else _graph(comm)
        alone = not (edges.sources or edges.destinations)
        any_alone = any(mpi_bootstrap.allgather_bytes(comm, b"alone" if alone else b""))  # see `kernels.share`
        topology = attachments[_NAME] = _Topology(None if any_alone else edges)
    return cast(_Topology, topology).edges


def _cartesian(comm: MPI.Cartcomm) -> Edges:
    """Below and above; the receiver counts this rank as its other neighbour."""
    ranks = [rank for dimension in range(comm.ndim) for rank in MPI.Cartcomm.Shift(comm, dimension, 1)]
    return Edges(ranks, ranks, [edge ^ 1 for edge in range(len(ranks))])


def _graph(comm: MPI.Graphcomm | MPI.Distgraphcomm) -> Edges:
    """Edges as they were given."""
    if isinstance(comm, MPI.Graphcomm):
        sources = destinations = MPI.Graphcomm.Get_neighbors(comm, comm.rank)
    else:
        sources, destinations, _ = MPI.Distgraphcomm.Get_dist_neighbors(comm)
    return Edges(sources, destinations, list(range(len(destinations))))


neighbor_allgather = _maker("Neighbor_allgather", _whole, _equal)
neighbor_allgatherv = _maker("Neighbor_allgatherv", _whole, resolve_blocks)
neighbor_alltoall = _maker("Neighbor_alltoall", _equal, _equal)
neighbor_alltoallv = _maker("Neighbor_alltoallv", resolve_blocks, resolve_blocks)
neighbor_alltoallw = _maker("Neighbor_alltoallw", resolve_each, resolve_each)
OPERATIONS = (
    *("Neighbor_allgather", "Neighbor_allgatherv"),
    *("Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw"),
)
