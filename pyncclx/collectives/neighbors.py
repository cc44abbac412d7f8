"""Neighbourhood collectives: exchanges in which most pairs of ranks send nothing.

On a Cartesian communicator, neighbours are ordered by dimension, the lower one first. Data sent to the lower neighbour
arrives there as data from its upper neighbour, even if both are the same rank, or this rank. If a graph has several
edges between two ranks, they match in the order in which each rank lists them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

from mpi4py import MPI

import mpi_bootstrap

from .. import backends
from ..arrays.places import on_host
from ..derived.batches import Part
from ..derived.typed import Typed, resolve_blocks, resolve_each, resolve_typed
from ..launch.call import Call
from ..system.process import PerProcess
from ..team.attachment import Attachment
from ..team.base import IntraBase as Intracomm
from . import alltoallw
from .alltoallw import Sides, arrange, exchange
from .lowering import lowered_by

choose = alltoallw.choose
_NAME = "edges"  # name of the attachment
# Attribute of a graph: whether some rank has no neighbours. MPI copies it to duplicates.
_ANY_ALONE = PerProcess(lambda: MPI.Comm.Create_keyval(lambda comm, keyval, value: value), lasting=True)


class Edges(NamedTuple):
    """The neighbours of this rank; MPI.PROC_NULL past the end of a dimension."""

    sources: list[int]
    destinations: list[int]
    # Indices into the destinations, ordered as each receiver lists its sources.
    order: list[int]


class _Topology(Attachment):
    """The edges of a communicator, cached as its attachment."""

    def __init__(self, edges: Edges | None) -> None:
        self.edges = edges

    def is_idle(self) -> bool:
        """Return True, because the attachment holds only numbers."""
        return True


def edges_of(comm: Any) -> Edges | None:
    """Return the edges of this rank; None if some rank of the graph has none.

    Not collective, except for the first call on a distributed graph that was made by mpi4py alone. The result is None
    on all ranks if one has no neighbours: that rank passes no device array, so it may have called MPI instead.
    """
    attachments = comm.state.attachments
    topology = attachments.get(_NAME)
    if topology is None:
        edges = _cartesian(comm) if isinstance(comm, MPI.Cartcomm) else _graph(comm)
        topology = attachments[_NAME] = _Topology(None if _any_alone(comm) else edges)
    return cast(_Topology, topology).edges


def meet_neighbors(graph: MPI.Distgraphcomm) -> None:
    """Record on a new graph whether some rank has no neighbours. Collective.

    MPI has no call that returns this.
    """
    edges = _graph(graph)
    first_alone = mpi_bootstrap.first_bytes(graph, b"" if edges.sources or edges.destinations else b"alone")
    MPI.Comm.Set_attr(graph, _ANY_ALONE.get(), first_alone is not None)


def _any_alone(comm: MPI.Comm) -> bool:
    if isinstance(comm, MPI.Cartcomm):
        return comm.ndim == 0
    if isinstance(comm, MPI.Graphcomm):
        ends, _ = MPI.Graphcomm.Get_topo(comm)
        return any(begin == end for begin, end in itertools.pairwise([0, *ends]))
    graph = cast(MPI.Distgraphcomm, comm)
    if MPI.Comm.Get_attr(graph, _ANY_ALONE.get()) is None:
        meet_neighbors(graph)
    return bool(MPI.Comm.Get_attr(graph, _ANY_ALONE.get()))


def _cartesian(comm: MPI.Cartcomm) -> Edges:
    """Return the edges to the lower and upper neighbour in each dimension."""
    ranks = [rank for dimension in range(comm.ndim) for rank in MPI.Cartcomm.Shift(comm, dimension, 1)]
    return Edges(ranks, ranks, [edge ^ 1 for edge in range(len(ranks))])


def _graph(comm: MPI.Graphcomm | MPI.Distgraphcomm) -> Edges:
    """Return the edges in the order in which the graph was made."""
    if isinstance(comm, MPI.Graphcomm):
        sources = destinations = MPI.Graphcomm.Get_neighbors(comm, comm.rank)
    else:
        sources, destinations, _ = MPI.Distgraphcomm.Get_dist_neighbors(comm)
    return Edges(sources, destinations, list(range(len(destinations))))


_Resolve = Callable[..., Typed]


def _same_for_each(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """Resolve a buffer that is sent to each neighbour as a whole."""
    typed = resolve_typed(spec, name, writable=writable, device=device, blocks=min(neighbors, 1))
    return replace(typed, parts=typed.parts * neighbors)


def _block_for_each(spec: Any, name: str, neighbors: int, *, writable: bool, device: Any) -> Typed:
    """Resolve a buffer with blocks of equal length, one for each neighbour."""
    typed = resolve_typed(spec, name, writable=writable, device=device, blocks=neighbors)
    whole = typed.parts[0]
    each = whole.count // max(neighbors, 1)
    step = each * whole.typemap.extent
    parts = tuple(Part(whole.typemap, each, whole.offset + n * step, 0) for n in range(neighbors))
    return replace(typed, parts=parts)


def _operation(name: str, resolve_send: _Resolve, resolve_recv: _Resolve) -> Callable[..., Call | None]:
    """Return the function that makes the calls of an operation."""

    def describe(comm: Intracomm, sendbuf: Any, recvbuf: Any) -> Sides | None:
        edges = edges_of(comm)
        if edges is None or on_host(sendbuf, recvbuf):
            return None
        device, sources, destinations = backends.select(), edges.sources, edges.destinations
        send = resolve_send(sendbuf, f"{name}: sendbuf", len(destinations), writable=False, device=device)
        recv = resolve_recv(recvbuf, f"{name}: recvbuf", len(sources), writable=True, device=device)
        sent = [(destinations[edge], send.parts[edge]) for edge in edges.order]
        received = zip(sources, recv.parts, strict=True)
        return Sides(name, arrange(send, sent, comm.size), arrange(recv, received, comm.size))

    describe.__name__ = name.lower()
    describe.__doc__ = f"See `Topocomm.{name}`."
    return lowered_by(exchange)(describe)


neighbor_allgather = _operation("Neighbor_allgather", _same_for_each, _block_for_each)
neighbor_allgatherv = _operation("Neighbor_allgatherv", _same_for_each, resolve_blocks)
neighbor_alltoall = _operation("Neighbor_alltoall", _block_for_each, _block_for_each)
neighbor_alltoallv = _operation("Neighbor_alltoallv", resolve_blocks, resolve_blocks)
neighbor_alltoallw = _operation("Neighbor_alltoallw", resolve_each, resolve_each)
