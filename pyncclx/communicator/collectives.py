"""The blocking collectives of a communicator: one thin method for each, on device arrays a kernel, else mpi4py's."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..collectives.allgather import allgather
from ..collectives.allreduce import allreduce
from ..collectives.alltoall import alltoall
from ..collectives.alltoallv import alltoallv
from ..collectives.barrier import barrier
from ..collectives.bcast import bcast
from ..collectives.reduce import reduce
from ..collectives.reduce_scatter_block import reduce_scatter_block
from ..launch.run import by_kernel
from ..team.base import IntraBase
from .methods import nonblocking, or_staged, persistent


class Collectives(IntraBase):
    """Collectives that have kernels."""

    def Barrier(self, *, device: bool = False, algorithm: str | None = None) -> None:
        """Synchronise the ranks: on the host as MPI does, or with `device=True` the ranks' current streams.

        `algorithm` can be "numba": the kernel written in Python.
        """
        if not by_kernel(self, barrier, device=device, algorithm=algorithm):
            super().Barrier()

    Ibarrier = nonblocking(barrier)
    Barrier_init = persistent(barrier)

    @or_staged
    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None) -> None:
        """Give every rank root's data.

        Parameters
        ----------
        buf : array or buffer spec, any datatype, as many bytes on every rank
        root : int
        algorithm : {"direct", "two_shot_lines", "chain", "copy_engine"}, optional
            By length if left out. "copy_engine" is for buffers in windows; see `sm_free`.
        """
        if not by_kernel(self, bcast, buf, root, algorithm=algorithm):
            super().Bcast(buf, root)

    Ibcast = nonblocking(bcast)
    Bcast_init = persistent(bcast)

    @or_staged
    def Reduce(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, root: int = 0, *, algorithm: str | None = None
    ) -> None:
        """Fold sendbuf elementwise over all ranks, in rank order, into root's recvbuf.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE at root reads recvbuf
        recvbuf : the same at root; not used elsewhere
        op : MPI.Op or pyncclx.AVG
        root : int
        algorithm : {"one_shot", "two_shot_lines", "two_shot", "chain"}, optional
            By length if left out. The result has the same bits in all.
        """
        if not by_kernel(self, reduce, sendbuf, recvbuf, op, root, algorithm=algorithm):
            super().Reduce(sendbuf, recvbuf, op, root)

    Ireduce = nonblocking(reduce)
    Reduce_init = persistent(reduce)

    @or_staged
    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None) -> None:
        """Fold sendbuf elementwise over all ranks, in rank order, into every rank's recvbuf.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,); MPI.IN_PLACE reads recvbuf
        recvbuf : array or buffer spec, same count and datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot_lines", "two_shot", "numba"}, optional
            By length if left out. "numba": the kernels written in Python. The result has the same bits in all, on all
            ranks and in every run.
        """
        if not by_kernel(self, allreduce, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Allreduce(sendbuf, recvbuf, op)

    Iallreduce = nonblocking(allreduce)
    Allreduce_init = persistent(allreduce)

    @or_staged
    def Reduce_scatter_block(
        self, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, algorithm: str | None = None
    ) -> None:
        """Fold sendbuf elementwise over all ranks, in rank order; rank r gets block r of the result.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,); MPI.IN_PLACE reads recvbuf, then of that shape
        recvbuf : array or buffer spec, shape (count,), same datatype
        op : MPI.Op or pyncclx.AVG
        algorithm : {"one_shot", "two_shot"}, optional
            By length if left out. The result has the same bits in both.
        """
        if not by_kernel(self, reduce_scatter_block, sendbuf, recvbuf, op, algorithm=algorithm):
            super().Reduce_scatter_block(sendbuf, recvbuf, op)

    Ireduce_scatter_block = nonblocking(reduce_scatter_block)
    Reduce_scatter_block_init = persistent(reduce_scatter_block)

    @or_staged
    def Allgather(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None) -> None:
        """Give every rank all ranks' data, in rank order.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (count,), any datatype; MPI.IN_PLACE reads this rank's block of recvbuf
        recvbuf : array or buffer spec, shape (size * count,)
        algorithm : {"copy_engine", "numba"}, optional
            "copy_engine": for a recvbuf in a window; see `sm_free`. "numba": the kernel written in Python.
        transform : pyncclx.Transform, optional
            What is sent of each element; the arrays may be of different types then, with as many elements.
        """
        if not by_kernel(self, allgather, sendbuf, recvbuf, algorithm=algorithm, transform=transform):
            super().Allgather(sendbuf, recvbuf)

    Iallgather = nonblocking(allgather)
    Allgather_init = persistent(allgather)

    @or_staged
    def Alltoall(self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, transform: Any = None) -> None:
        """Send block r of sendbuf to rank r; block s of recvbuf comes from rank s.

        Parameters
        ----------
        sendbuf : array or buffer spec, shape (size * count,), any datatype; MPI.IN_PLACE replaces recvbuf
        recvbuf : array or buffer spec, shape (size * count,)
        algorithm : {"copy_engine", "numba"}, optional
            "copy_engine": for a recvbuf in a window, and not in place; see `sm_free`. "numba": the kernel in Python.
        transform : pyncclx.Transform, optional
            What is sent of each element; the arrays may be of different types then, with as many elements.
        """
        if not by_kernel(self, alltoall, sendbuf, recvbuf, algorithm=algorithm, transform=transform):
            super().Alltoall(sendbuf, recvbuf)

    Ialltoall = nonblocking(alltoall)
    Alltoall_init = persistent(alltoall)

    @or_staged
    def Alltoallv(
        self,
        sendbuf: Any,
        recvbuf: Any,
        *,
        layout: str | None = None,
        capacity: int | None = None,
        total: Any = None,
        status: Any = None,
        overflow: str | None = None,
        segments: Any = None,
        algorithm: str | None = None,
    ) -> None:
        """Send each rank some rows; as MPI's when the counts are on the host, dynamic when they are on the device.

        MPI's form takes ``[array, counts]``, ``[array, (counts, displs)]`` and so on, in elements.

        The dynamic form reads counts when the kernel runs, and stores the counts of what has come:
        ``comm.Alltoallv([sendbuf, counts], [recvbuf, recv_counts])``. It is used when counts are device arrays, or
        `layout` is given (on the host device, where NumPy arrays could be either, give it). Collective: a rank
        with nothing to send takes part all the same.

        Parameters
        ----------
        sendbuf : ``[array, counts]`` or ``[array, (counts, displs)]``
            A row is what one index of the array's first dimension holds. counts and displs: device arrays, shape
            (size,), int64, in rows; without displs the rows for rank 0, 1, … follow each other.
        recvbuf : array, ``[array, counts]`` or ``[array, (counts, displs)]``
            Its rows are the capacity; nothing is written past it, and the rows that do not fit are dropped. counts
            and displs are outputs: how many rows of each rank were stored, and where they begin.
        layout : {"packed", "slots", "sender", "placed"}, default "packed"
            "packed": the ranks' rows follow each other. "slots": recvbuf has the shape (size, capacity, …), and
            the rows of rank s begin at recvbuf[s]. "sender": the same shape, and in recvbuf[s] the rows have the
            place that they had in the sendbuf of rank s. "placed": displs of recvbuf are an input, the places
            where each rank's rows begin; rows of different ranks must not overlap. With the displs of an earlier
            sendbuf, rows come back to where they were.
        capacity : int, optional
            Use only so many rows of recvbuf, or of each slot.
        total : device array, shape (1,), int64, optional
            Output: how many rows were stored.
        status : device array, shape (size,), int64, optional
            Output: how many rows of each rank were dropped.
        overflow : {"raise", "drop"}, optional
            Rows that do not fit are dropped. "raise": the next call on this communicator raises CapacityExceeded.
            "drop": no error. Default: "drop" if `status` is given, else "raise".
        segments : (lengths, ids) or (lengths, ids, all_lengths), optional
            sendbuf is divided into segments of `lengths` rows, as many on all ranks, and each goes to any number of
            ranks, or to none: counts[r] segments go to rank r, by their numbers in `ids`, those for rank 0 first. They
            arrive in ascending order of their numbers, or with ``layout="sender"`` where they were. Device arrays,
            int64; `all_lengths` is an output, shape (size, segments): the lengths on all ranks.
        algorithm : {"numba"}, optional
            Of the dynamic form: the kernel written in Python.
        """
        options = {"layout": layout, "capacity": capacity, "total": total, "status": status, "overflow": overflow}
        if not by_kernel(self, alltoallv, sendbuf, recvbuf, **options, segments=segments, algorithm=algorithm):
            super().Alltoallv(sendbuf, recvbuf)

    Ialltoallv = nonblocking(alltoallv)
    Alltoallv_init = persistent(alltoallv)
