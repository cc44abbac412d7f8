"""More collectives of a communicator: those that gather or scatter blocks, and the prefix reductions."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..collectives.allgatherv import allgatherv
from ..collectives.alltoallw import alltoallw
from ..collectives.exscan import exscan
from ..collectives.gather import gather
from ..collectives.gatherv import gatherv
from ..collectives.reduce_scatter import reduce_scatter
from ..collectives.scan import scan
from ..collectives.scatter import scatter
from ..collectives.scatterv import scatterv
from ..launch.run import by_kernel, by_new_kernel
from ..team.base import IntraBase
from .methods import nonblocking, or_staged, persistent


class BlockCollectives(IntraBase):
    """Collectives that gather, scatter or reduce one block for each rank."""

    @or_staged
    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give root all ranks' data, in rank order.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,), any datatype; MPI.IN_PLACE at root leaves root's block alone
        recvbuf : array or buffer spec, shape (size * count,), at root; not used elsewhere
        root : int
        """
        if not by_kernel(self, gather, sendbuf, recvbuf, root):
            super().Gather(sendbuf, recvbuf, root)

    Igather = nonblocking(gather)
    Gather_init = persistent(gather)

    @or_staged
    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give root all ranks' data, blocks of any length.

        Parameters
        ----------
        sendbuf : array or buffer spec, any datatype; MPI.IN_PLACE at root leaves root's block alone
        recvbuf : ``[array, counts]``, ``[array, (counts, displs)]``, … at root; not used elsewhere
            Counts and displacements in elements, on the host. What no block covers stays as it is. A rank that sends
            more than its count is an error, which root's next call raises (MPI.Exception, class ERR_TRUNCATE).
        root : int
        """
        if not by_kernel(self, gatherv, sendbuf, recvbuf, root):
            super().Gatherv(sendbuf, recvbuf, root)

    Igatherv = nonblocking(gatherv)
    Gatherv_init = persistent(gatherv)

    @or_staged
    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give rank r block r of root's data.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,), any datatype, at root; not used elsewhere
        recvbuf : array or buffer spec, shape (count,); MPI.IN_PLACE at root leaves root's block where it is
        root : int
        """
        if not by_kernel(self, scatter, sendbuf, recvbuf, root):
            super().Scatter(sendbuf, recvbuf, root)

    Iscatter = nonblocking(scatter)
    Scatter_init = persistent(scatter)

    @or_staged
    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Give each rank a block of root's data, of any length.

        Parameters
        ----------
        sendbuf : ``[array, counts]``, ``[array, (counts, displs)]``, … at root; not used elsewhere
            Any datatype; counts and displacements in elements, on the host.
        recvbuf : array or buffer spec; MPI.IN_PLACE at root leaves root's block where it is
            If the block is longer than this, a later call on this rank raises MPI.Exception of class ERR_TRUNCATE.
        root : int
        """
        if not by_kernel(self, scatterv, sendbuf, recvbuf, root):
            super().Scatterv(sendbuf, recvbuf, root)

    Iscatterv = nonblocking(scatterv)
    Scatterv_init = persistent(scatterv)

    @or_staged
    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Give every rank all ranks' data, blocks of any length.

        Parameters
        ----------
        sendbuf : array or buffer spec, any datatype; MPI.IN_PLACE reads this rank's block of recvbuf
        recvbuf : ``[array, counts]``, ``[array, (counts, displs)]``, …
            Counts and displacements in elements, on the host; the counts are the same on all ranks. What no block
            covers stays as it is.
        """
        if not by_kernel(self, allgatherv, sendbuf, recvbuf):
            super().Allgatherv(sendbuf, recvbuf)

    Iallgatherv = nonblocking(allgatherv)
    Allgatherv_init = persistent(allgatherv)

    @or_staged
    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send each rank a block and receive one from it, each of a datatype of its own.

        Parameters
        ----------
        sendbuf : ``[array, types]``, ``[array, (counts, displs), types]`` or ``[array, counts, displs, types]``
            A datatype for each rank, derived or not; displacements in bytes, on the host. MPI.IN_PLACE replaces
            recvbuf, whose blocks must then be as long on both sides.
        recvbuf : the same
            A rank that sends more than the block for it is an error, which a later call raises (MPI.Exception, class
            ERR_TRUNCATE).
        """
        if not by_kernel(self, alltoallw, sendbuf, recvbuf):
            super().Alltoallw(sendbuf, recvbuf)

    Ialltoallw = nonblocking(alltoallw)
    Alltoallw_init = persistent(alltoallw)

    @or_staged
    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = MPI.SUM, *, algorithm: str | None = None
    ) -> None:
        """Fold sendbuf elementwise over all ranks, in rank order; rank r gets the next recvcounts[r] elements.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (sum(recvcounts),); MPI.IN_PLACE reads recvbuf, then of that shape
            In place the result stands at the beginning of recvbuf; what its other elements are then is undefined.
        recvbuf : array or buffer spec, shape (recvcounts[rank],), same datatype
        recvcounts : sequence of int, on all ranks the same
            If left out, the ranks exchange the lengths of their recvbufs, on the host; not in place.
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot"}, optional
            By length if left out. The result has the same bits in both.
        """
        if not by_new_kernel(self, reduce_scatter, sendbuf, recvbuf, recvcounts, op, algorithm=algorithm):
            super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    Ireduce_scatter = nonblocking(reduce_scatter)
    Reduce_scatter_init = persistent(reduce_scatter)


class PrefixReductions(IntraBase):
    """Reductions of which each rank gets what the ranks up to it have contributed."""

    @or_staged
    def Scan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None) -> None:
        """Fold sendbuf elementwise over the ranks 0 to this one, in rank order.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE reads recvbuf
        recvbuf : array or buffer spec, same count and datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot"}, optional
            By length if left out. The result has the same bits in both.
        """
        if not by_kernel(self, scan, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Scan(sendbuf, recvbuf, op)

    Iscan = nonblocking(scan)
    Scan_init = persistent(scan)

    @or_staged
    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None) -> None:
        """Fold sendbuf elementwise over the ranks below this one, in rank order; rank 0's recvbuf stays as it is.

        Parameters
        ----------
        sendbuf, recvbuf, op, algorithm
            As for `Scan`.
        """
        if not by_kernel(self, exscan, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Exscan(sendbuf, recvbuf, op)

    Iexscan = nonblocking(exscan)
    Exscan_init = persistent(exscan)
