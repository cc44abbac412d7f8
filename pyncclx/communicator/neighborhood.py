"""Neighbourhood collectives of communicators with a topology."""

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
        """For type checkers: methods of other classes that `Neighbors` calls."""
else:
    _TopoBase = IntraBase


class Neighbors(_TopoBase):
    """Neighbourhood collectives of device arrays.

    On a Cartesian communicator, blocks 2 * d and 2 * d + 1 of a buffer belong to the lower and the upper neighbour in
    dimension d. Data sent to the lower neighbour arrives in its block for the upper neighbour. Blocks for MPI.PROC_NULL
    keep their values. On a graph there is a block for each edge; edges between the same two ranks are matched in order.
    """

    @or_staged
    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send the same data to all neighbours, and receive a block from each.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,), any datatype
        recvbuf : array or buffer spec, shape (number of neighbours * count,)
        """
        if not by_kernel(self, neighbor_allgather, sendbuf, recvbuf):
            super().Neighbor_allgather(sendbuf, recvbuf)

    Ineighbor_allgather = nonblocking(neighbor_allgather)
    Neighbor_allgather_init = persistent(neighbor_allgather)

    @or_staged
    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send the same data to all neighbours; receive blocks of any length.

        Parameters
        ----------
        sendbuf : array or buffer spec, any datatype
        recvbuf : ``[array, counts]``, ``[array, (counts, displs)]``, …
            Counts and displacements in elements, on the host.
        """
        if not by_kernel(self, neighbor_allgatherv, sendbuf, recvbuf):
            super().Neighbor_allgatherv(sendbuf, recvbuf)

    Ineighbor_allgatherv = nonblocking(neighbor_allgatherv)
    Neighbor_allgatherv_init = persistent(neighbor_allgatherv)

    @or_staged
    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange a block with each neighbour, all blocks of the same length.

        Parameters
        ----------
        sendbuf, recvbuf : array or buffer spec, shape (number of neighbours * count,), any datatype
        """
        if not by_kernel(self, neighbor_alltoall, sendbuf, recvbuf):
            super().Neighbor_alltoall(sendbuf, recvbuf)

    Ineighbor_alltoall = nonblocking(neighbor_alltoall)
    Neighbor_alltoall_init = persistent(neighbor_alltoall)

    @or_staged
    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange a block of any length with each neighbour.

        Parameters
        ----------
        sendbuf, recvbuf : ``[array, counts]``, ``[array, (counts, displs)]``, …
            Any datatype; counts and displacements in elements, on the host.
        """
        if not by_kernel(self, neighbor_alltoallv, sendbuf, recvbuf):
            super().Neighbor_alltoallv(sendbuf, recvbuf)

    Ineighbor_alltoallv = nonblocking(neighbor_alltoallv)
    Neighbor_alltoallv_init = persistent(neighbor_alltoallv)

    @or_staged
    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Exchange a block with each neighbour, each block with its own datatype.

        Parameters
        ----------
        sendbuf, recvbuf : ``[array, types]``, ``[array, (counts, displs), types]``, …
            A datatype for each block; displacements in bytes, on the host.
        """
        if not by_kernel(self, neighbor_alltoallw, sendbuf, recvbuf):
            super().Neighbor_alltoallw(sendbuf, recvbuf)

    Ineighbor_alltoallw = nonblocking(neighbor_alltoallw)
    Neighbor_alltoallw_init = persistent(neighbor_alltoallw)
