"""Reductions: kernels for device arrays, mpi4py for host arrays."""

from __future__ import annotations

from typing import Any, cast

from mpi4py import MPI

from ..collectives.allreduce import allreduce
from ..collectives.reduce import reduce
from ..collectives.reduce_scatter import reduce_scatter, reduce_scatter_block
from ..collectives.scan import exscan, scan
from ..launch.run import by_kernel, by_new_kernel
from ..operators.ops import AnyOp
from ..team.base import IntraBase
from .methods import nonblocking, or_staged, persistent


class Reductions(IntraBase):
    """Collectives that reduce, in rank order: blocking, nonblocking and persistent."""

    @or_staged
    def Reduce(
        self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, root: int = 0, *, algorithm: str | None = None
    ) -> None:
        """Reduce sendbuf elementwise over all ranks, in rank order, into root's recvbuf.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE at root reads recvbuf
        recvbuf : array or buffer spec, same count and datatype, at root; not used elsewhere
        op : MPI.Op or pyncclx.AVG
        root : int
        algorithm : {"one_shot", "two_shot_lines", "chain_lines", "two_shot", "chain"}, optional
            Chosen by length if left out. All give the same bits.
        """
        if not by_kernel(self, reduce, sendbuf, recvbuf, op, root, algorithm=algorithm):
            super().Reduce(sendbuf, recvbuf, cast(MPI.Op, op), root)

    Ireduce = nonblocking(reduce)
    Reduce_init = persistent(reduce)

    @or_staged
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None) -> None:
        """Reduce sendbuf elementwise over all ranks, in rank order, into every recvbuf.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE reads recvbuf
        recvbuf : array or buffer spec, same count and datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot_lines", "two_shot", "numba"}, optional
            Chosen by length if left out. "numba": the kernels written in Python. All give the same bits, on all ranks
            and in every run.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> x, y = np.arange(4.0), np.zeros(4)
        >>> comm.Allreduce(x, y, algorithm="one_shot")
        >>> y.tolist()
        [0.0, 1.0, 2.0, 3.0]
        """
        if not by_kernel(self, allreduce, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Allreduce(sendbuf, recvbuf, cast(MPI.Op, op))

    Iallreduce = nonblocking(allreduce)
    Allreduce_init = persistent(allreduce)

    @or_staged
    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None
    ) -> None:
        """Reduce sendbuf elementwise over all ranks; rank r gets block r of the result.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,); MPI.IN_PLACE reads recvbuf, which then has that shape
            In place, the result is stored at the beginning of recvbuf, and the elements after it become undefined.
        recvbuf : array or buffer spec, shape (count,), same datatype
        op : MPI.Op or pyncclx.AVG
            Applied in rank order.
        algorithm : {"one_shot", "one_shot_lines", "two_shot"}, optional
            Chosen by length if left out. All give the same bits.
        """
        if not by_kernel(self, reduce_scatter_block, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Reduce_scatter_block(sendbuf, recvbuf, cast(MPI.Op, op))

    Ireduce_scatter_block = nonblocking(reduce_scatter_block)
    Reduce_scatter_block_init = persistent(reduce_scatter_block)

    @or_staged
    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: AnyOp = MPI.SUM, *, algorithm: str | None = None
    ) -> None:
        """Reduce sendbuf elementwise; rank r gets block r, of recvcounts[r] elements.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (sum(recvcounts),); MPI.IN_PLACE reads recvbuf, which then has that shape
            In place, the result is stored at the beginning of recvbuf, and the elements after it become undefined.
        recvbuf : array or buffer spec, shape (recvcounts[rank],), same datatype
        recvcounts : sequence of int, equal on all ranks
            If left out, the ranks exchange the lengths of their recvbufs on the host. Required in place.
        op : MPI.Op or pyncclx.AVG
            Applied in rank order.
        algorithm : {"one_shot", "two_shot"}, optional
            Chosen by length if left out. Both give the same bits.
        """
        if not by_new_kernel(
            self, reduce_scatter, sendbuf, recvbuf, recvcounts, op, may_stage=True, algorithm=algorithm
        ):
            super().Reduce_scatter(sendbuf, recvbuf, recvcounts, cast(MPI.Op, op))

    Ireduce_scatter = nonblocking(reduce_scatter, is_cached=False)
    Reduce_scatter_init = persistent(reduce_scatter)

    @or_staged
    def Scan(self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None) -> None:
        """Reduce sendbuf elementwise over rank 0 to this rank, in rank order.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE reads recvbuf
        recvbuf : array or buffer spec, same count and datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot"}, optional
            Chosen by length if left out. Both give the same bits.
        """
        if not by_kernel(self, scan, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Scan(sendbuf, recvbuf, cast(MPI.Op, op))

    Iscan = nonblocking(scan)
    Scan_init = persistent(scan)

    @or_staged
    def Exscan(self, sendbuf: Any, recvbuf: Any, op: AnyOp = MPI.SUM, *, algorithm: str | None = None) -> None:
        """Reduce sendbuf elementwise over the lower ranks, in rank order.

        The recvbuf of rank 0 keeps its values.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE reads recvbuf
        recvbuf : array or buffer spec, same count and datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot"}, optional
            Chosen by length if left out. Both give the same bits.
        """
        if not by_kernel(self, exscan, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Exscan(sendbuf, recvbuf, cast(MPI.Op, op))

    Iexscan = nonblocking(exscan)
    Exscan_init = persistent(exscan)
