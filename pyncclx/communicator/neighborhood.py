"""The neighbourhood collectives of communicators with a topology, in all forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..collectives.neighbors import CALLS
from ..launch.run import by_kernel
from ..team.base import IntraBase
from .nonblocking import adds_nonblocking
from .persistent import adds_persistent

if TYPE_CHECKING:

    class _TopoBase(MPI.Topocomm, IntraBase):
        """What `Neighbors` becomes a part of."""
else:
    _TopoBase = IntraBase

_NONBLOCKING = {f"I{name.lower()}": make for name, make in CALLS.items()}


@adds_nonblocking(_NONBLOCKING)
@adds_persistent(_NONBLOCKING)
class Neighbors(_TopoBase):
    """Neighbourhood collectives that have kernels.

    On a Cartesian communicator block 2 * d of a buffer belongs to the neighbour below in dimension d, block 2 * d + 1
    to the one above. What is sent to the one below arrives there as from the one above. Blocks for MPI.PROC_NULL stay
    as they are. On a graph there is a block for each edge; edges between the same two ranks are taken in order.
    """

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send all neighbours the same data; recvbuf has a block for each. Any datatype."""
        if not by_kernel(self, CALLS["Neighbor_allgather"], sendbuf, recvbuf):
            super().Neighbor_allgather(sendbuf, recvbuf)

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Neighbor_allgather`; the blocks have counts and displacements, in elements and on the host."""
        if not by_kernel(self, CALLS["Neighbor_allgatherv"], sendbuf, recvbuf):
            super().Neighbor_allgatherv(sendbuf, recvbuf)

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send each neighbour a block of its own, all of the same length. Any datatype."""
        if not by_kernel(self, CALLS["Neighbor_alltoall"], sendbuf, recvbuf):
            super().Neighbor_alltoall(sendbuf, recvbuf)

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Neighbor_alltoall`; the blocks have counts and displacements, in elements and on the host."""
        if not by_kernel(self, CALLS["Neighbor_alltoallv"], sendbuf, recvbuf):
            super().Neighbor_alltoallv(sendbuf, recvbuf)

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `Neighbor_alltoallv`; each block has a datatype of its own, and displacements are in bytes."""
        if not by_kernel(self, CALLS["Neighbor_alltoallw"], sendbuf, recvbuf):
            super().Neighbor_alltoallw(sendbuf, recvbuf)
