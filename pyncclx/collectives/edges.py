"""The edges of a topology, in an order on which both ends of each agree.

On a Cartesian communicator the neighbours are, dimension by dimension, the one below and the one above. Data for the
one below arrives there as from the one above, also where both are one rank, or this one. On a graph the edges between
two ranks, if there are several, are taken in the order in which each of the two has them.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, cast

from mpi4py import MPI

import mpi_bootstrap

from ..system.process import PerProcess
from ..team.state import Attachment

_NAME = "edges"  # of the attachment
# Whether some rank of a graph has no neighbours, with the graph's handle; MPI copies it to duplicates.
_ANY_ALONE = PerProcess(lambda: MPI.Comm.Create_keyval(lambda comm, keyval, value: value), lasting=True)


class Edges(NamedTuple):
    """The ranks that this rank receives from and sends to; MPI.PROC_NULL past the end of a dimension."""

    sources: list[int]
    destinations: list[int]
    order: list[int]  # of the destinations, so that each receiver gets its blocks in the order of its sources


class _Topology(Attachment):
    """What a communicator keeps of its topology."""

    def __init__(self, edges: Edges | None) -> None:
        self.edges = edges


def edges_of(comm: Any) -> Edges | None:
    """Return the edges of this rank; None if some rank has none, and so no array.

    No rank waits for another, but at the first call on a distributed graph that plain mpi4py has made: that call is
    collective. A rank without neighbours may be in MPI already, with arguments that have no place on the device.
    """
    attachments = comm.state.attachments
    topology = attachments.get(_NAME)
    if topology is None:
        edges = _cartesian(comm) if isinstance(comm, MPI.Cartcomm) else _graph(comm)
        topology = attachments[_NAME] = _Topology(None if _any_alone(comm) else edges)
    return cast(_Topology, topology).edges


def meet_neighbors(graph: MPI.Distgraphcomm) -> None:
    """Let all ranks of a new graph find out whether one has no neighbours; MPI has no call for it. Collective."""
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
