"""The edges of a topology, in an order on which both ends of each agree.

On a Cartesian communicator the neighbours are, dimension by dimension, the one below and the one above. Data for the
one below arrives there as from the one above, also where both are one rank, or this one. On a graph the edges between
two ranks, if there are several, are taken in the order in which each of the two has them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from mpi4py import MPI

import mpi_bootstrap

from ..team.state import Attachment

_NAME = "edges"  # of the attachment


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
