"""The neighbourhood collectives of communicators with a topology, in all forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..collectives.neighbors import (
    neighbor_allgather,
    neighbor_allgatherv,
    neighbor_alltoall,
    neighbor_alltoallv,
    neighbor_alltoallw,
)
from ..launch.run import by_kernel
from ..team.base import IntraBase
from .methods import nonblocking, or_staged, persistent

if TYPE_CHECKING:

    class _TopoBase(MPI.Topocomm, IntraBase):
        """What `Neighbors` becomes a part of."""
else:
    _TopoBase = IntraBase


class Neighbors(_TopoBase):
    """Neighbourhood collectives that have kernels.

    On a Cartesian communicator block 2 * d of a buffer belongs to the neighbour below in dimension d, block 2 * d + 1
    to the one above. What is sent to the one below arrives there as from the one above. Blocks for MPI.PROC_NULL stay
    as they are. On a graph there is a block for each edge; edges between the same two ranks are taken in order.
    """

    @or_staged
    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send all neighbours the same data; recvbuf has a block for each. Any datatype."""
        if not by_kernel(self, neighbor_allgather, sendbuf, recvbuf):
            super().Neighbor_allgather(sendbuf, recvbuf)

    Ineighbor_allgather = nonblocking(neighbor_allgather)
    Neighbor_allgather_init = persistent(neighbor_allgather)

    @or_staged
    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Neighbor_allgather`; the blocks have counts and displacements, in elements and on the host."""
        if not by_kernel(self, neighbor_allgatherv, sendbuf, recvbuf):
            super().Neighbor_allgatherv(sendbuf, recvbuf)

    Ineighbor_allgatherv = nonblocking(neighbor_allgatherv)
    Neighbor_allgatherv_init = persistent(neighbor_allgatherv)

    @or_staged
    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send each neighbour a block of its own, all of the same length. Any datatype."""
        if not by_kernel(self, neighbor_alltoall, sendbuf, recvbuf):
            super().Neighbor_alltoall(sendbuf, recvbuf)

    Ineighbor_alltoall = nonblocking(neighbor_alltoall)
    Neighbor_alltoall_init = persistent(neighbor_alltoall)

    @or_staged
    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Neighbor_alltoall`; the blocks have counts and displacements, in elements and on the host."""
        if not by_kernel(self, neighbor_alltoallv, sendbuf, recvbuf):
            super().Neighbor_alltoallv(sendbuf, recvbuf)

    Ineighbor_alltoallv = nonblocking(neighbor_alltoallv)
    Neighbor_alltoallv_init = persistent(neighbor_alltoallv)

    @or_staged
    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Neighbor_alltoallv`; each block has a datatype of its own, and displacements are in bytes."""
        if not by_kernel(self, neighbor_alltoallw, sendbuf, recvbuf):
            super().Neighbor_alltoallw(sendbuf, recvbuf)

    Ineighbor_alltoallw = nonblocking(neighbor_alltoallw)
    Neighbor_alltoallw_init = persistent(neighbor_alltoallw)
